"""The truth table of modes, every combination of it, and the reasons of those that are none."""

from itertools import product

import pytest

from kernels_sm100.config import ForwardConfig
from kernels_sm100.errors import ConfigError
from kernels_sm100.modes import (
    Direction,
    InnerLoadMode,
    InnerStoreMode,
    Launch,
    Modes,
    OuterStoreMode,
    derive_modes,
    why_not,
)

# direction, gathered, gather4, even rows, varlen, packed, group divides, atomics, deterministic ->
# load, store, outer; "*" is either. Whatever no line has is refused.
TABLE = """
forward  no   no   *    no   no   *    no   *    TMA         None        TMA
forward  no   no   *    no   yes  yes  no   *    TMA         None        TMA
forward  no   no   *    no   yes  no   no   *    TMA         None        STG
forward  no   no   *    yes  no   *    no   *    TMA         None        TMA_1D
forward  no   no   *    yes  yes  *    no   *    TMA         None        STG
forward  yes  no   *    no   no   *    no   *    CP_ASYNC    None        TMA
forward  yes  yes  yes  no   no   *    no   *    TMA_GATHER4 None        TMA
forward  yes  no   *    no   yes  yes  no   *    CP_ASYNC    None        TMA
forward  yes  yes  yes  no   yes  yes  no   *    TMA_GATHER4 None        TMA
forward  yes  no   *    no   yes  no   no   *    CP_ASYNC    None        STG
forward  yes  yes  yes  no   yes  no   no   *    TMA_GATHER4 None        STG
loop_k   no   no   *    no   no   *    no   no   TMA         TMA         STG
loop_k   no   no   *    no   yes  yes  no   no   TMA         TMA         STG
loop_k   yes  no   *    no   no   *    no   no   CP_ASYNC    TMA_1D      STG
loop_k   yes  yes  yes  no   no   *    no   no   TMA_GATHER4 TMA_1D      STG
loop_k   yes  no   *    no   yes  yes  no   no   CP_ASYNC    TMA_1D      STG
loop_k   yes  yes  yes  no   yes  yes  no   no   TMA_GATHER4 TMA_1D      STG
loop_k   yes  no   *    no   no   *    yes  no   CP_ASYNC    ATOMIC_ADD  STG
loop_k   yes  yes  yes  no   no   *    yes  no   TMA_GATHER4 ATOMIC_ADD  STG
loop_k   yes  no   *    no   yes  yes  yes  no   CP_ASYNC    ATOMIC_ADD  STG
loop_k   yes  yes  yes  no   yes  yes  yes  no   TMA_GATHER4 ATOMIC_ADD  STG
loop_q   no   no   *    no   no   *    no   *    TMA         TMA         STG
loop_q   no   no   *    no   yes  yes  no   *    TMA         TMA         STG
loop_q   no   no   *    yes  no   *    no   *    TMA         TMA         STG
loop_q   no   no   *    yes  yes  yes  no   *    TMA         TMA         STG
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
FACTS = list(product(("forward", "loop_k", "loop_q"), *[("no", "yes")] * 8))


def launch_of(facts: tuple[str, ...]) -> Launch:
    direction, gathered, gather4, even, varlen, packed, divides, atomics, deterministic = facts
    group = 1 if packed == "no" else 8 if divides == "yes" else 12
    return Launch(
        direction=Direction(direction),
        gathered=gathered == "yes",
        gather4=gather4 == "yes",
        even_rows=even == "yes",
        varlen=varlen == "yes",
        group=group,
        atomics=atomics == "yes",
        deterministic=deterministic == "yes",
    )


@pytest.mark.parametrize("facts", FACTS, ids="-".join)
def test_every_combination_has_the_modes_of_the_table_or_is_refused(facts):
    found = [
        row[9:]
        for row in ROWS
        if all(cell in ("*", fact) for cell, fact in zip(row, facts, strict=False))
    ]
    launch = launch_of(facts)
    if not found:
        with pytest.raises(ConfigError, match="modes not available in derive_modes: got Launch"):
            derive_modes(launch)
        assert why_not(launch)
        return
    (load, store, outer), *others = found
    assert not others
    assert derive_modes(launch) == Modes(
        inner_load=InnerLoadMode[load],
        inner_store=None if store == "None" else InnerStoreMode[store],
        outer_store=OuterStoreMode[outer],
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"direction": Direction.LOOP_Q, "gathered": True}, "gathered tokens are none: use LoopK"),
        ({"direction": Direction.FORWARD, "gathered": True, "varlen": True}, "one sequence"),
        ({"direction": Direction.FORWARD, "gather4": True}, "need no gather"),
        (
            {
                "direction": Direction.FORWARD,
                "gathered": True,
                "gather4": True,
                "even_rows": False,
            },
            "use cp.async",
        ),
        ({"direction": Direction.LOOP_K, "varlen": True}, "cross into the next sequence"),
        ({"direction": Direction.LOOP_K, "deterministic": True}, "use LoopQ"),
        ({"direction": Direction.LOOP_K, "atomics": True}, "gathered LoopK alone"),
        ({"direction": Direction.LOOP_Q, "group": 12}, "cuts a token's packed rows"),
    ],
)
def test_what_there_is_no_kernel_for_says_why(options, reason):
    with pytest.raises(ConfigError, match=reason):
        derive_modes(Launch(**options))


@pytest.mark.parametrize("group", range(1, 129))
def test_whatever_attention_packs_is_stored_a_tile_at_a_time(group):
    """Groups that divide a tile; the others are packed by no kernel, and would cut a token."""
    launch = Launch(direction=Direction.FORWARD, group=group)
    if 128 % group:
        assert derive_modes(launch).outer_store is OuterStoreMode.STG
        with pytest.raises(ConfigError, match="packed group not available"):
            ForwardConfig(group=group, pack_gqa=True)
        return
    stored = ForwardConfig(group=group, pack_gqa=True).outer_store
    assert stored is derive_modes(launch).outer_store is OuterStoreMode.TMA


def test_numbers_are_those_that_magi_attention_gave_them():
    """It has no TMA gather, whose number is ours."""
    theirs = {mode.name: mode.value for mode in InnerLoadMode if mode.name != "TMA_GATHER4"}
    assert theirs == {"TMA": 0, "CP_ASYNC": 2}
    assert [mode.value for mode in InnerStoreMode] == [0, 1, 2]
    assert {mode.name: mode.value for mode in OuterStoreMode} == {"TMA": 0, "STG": 1, "TMA_1D": 2}
