"""A configuration refuses what no kernel is written for, and every field is in the compile key."""

from dataclasses import fields, replace

import pytest

from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.errors import ConfigError
from kernels_sm100.launch import compile_key
from kernels_sm100.modes import InnerLoadMode, InnerStoreMode

GATHERED = {
    "direction": "loop_k",
    "deterministic": False,
    "inner_load": InnerLoadMode.CP_ASYNC,
}
CHANGES = {
    "direction": {"direction": "loop_k", "deterministic": False},
    "dtype": {"dtype": "float16"},
    "head_dim": {"head_dim": 64},
    "group": {"group": 2},
    "pack_gqa": {"pack_gqa": True},
    "descending": {"descending": True},
    "parts": {"parts": 2},
    "head_split": {"deterministic": False, "group": 2, "head_split": 2},
    "deterministic": {"deterministic": False},
    "spt": {"spt": True},
    "inner_load": GATHERED | {"inner_store": InnerStoreMode.TMA_1D},
    "inner_store": GATHERED | {"inner_store": InnerStoreMode.ATOMIC_ADD},
}


@pytest.mark.parametrize("field", [field.name for field in fields(BackwardConfig)])
def test_every_field_changes_the_compile_key(field):
    pytest.importorskip("cutlass", reason="a key holds the version of CuTe DSL (extra sm100)")
    base = BackwardConfig(deterministic=True)
    changed = replace(base, **CHANGES[field])

    assert getattr(changed, field) != getattr(base, field)
    assert compile_key(changed) != compile_key(base)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"direction": "both"},
            (
                "direction not available in BackwardConfig: got 'both', wanted one of loop_q, "
                "loop_k; name the loop that is inside."
            ),
        ),
        (
            {"dtype": "float32"},
            (
                "dtype not available in BackwardConfig: got 'float32', wanted one of bfloat16, "
                "float16; cast q, k, v."
            ),
        ),
        (
            {"head_dim": 96},
            (
                "head_dim not available in BackwardConfig: got 96, wanted 64 or 128; pad the "
                "heads with zeros."
            ),
        ),
        (
            {"group": 0},
            ("group not available in BackwardConfig: got 0, wanted at least 1; count query heads."),
        ),
        (
            {"direction": "loop_k", "group": 3, "pack_gqa": True},
            (
                "packed group not available in BackwardConfig: got 3, wanted a divisor of 128; do "
                "not pack: pack_gqa=False."
            ),
        ),
        (
            {"group": 4, "head_split": 3},
            (
                "head_split not available in BackwardConfig: got 3, wanted a divisor of the group, "
                "4; split into equal shares of heads."
            ),
        ),
        (
            {"group": 4, "head_split": 2, "deterministic": True},
            (
                "head_split not available in BackwardConfig: got head_split=2, deterministic=True, "
                "wanted 1, so that one CTA owns a dK and dV; leave one of them out."
            ),
        ),
        (
            {"group": 4, "head_split": 2, "pack_gqa": True},
            (
                "head_split not available in BackwardConfig: got direction='loop_q', "
                "pack_gqa=True, wanted 'loop_q', whose CTAs loop over the heads of a group, which "
                "are not packed; leave head_split out."
            ),
        ),
        (
            {"direction": "loop_k", "deterministic": True},
            (
                "deterministic dK and dV not available in BackwardConfig: got "
                "direction='loop_k', wanted direction='loop_q', which owns dK and dV; use LoopQ, "
                "or do without deterministic=True."
            ),
        ),
        (
            {"parts": 3},
            (
                "parts not available in BackwardConfig: got 3, wanted 1, 2 or 4 for loop_q, 1 for "
                "loop_k; lower the plan for this configuration."
            ),
        ),
        (
            {"inner_load": InnerLoadMode.CP_ASYNC, "inner_store": InnerStoreMode.TMA_1D},
            (
                "modes not available in BackwardConfig: got CP_ASYNC, TMA_1D of loop_q, wanted "
                "TMA, TMA; or of loop_k CP_ASYNC or TMA_GATHER4 with TMA_1D or ATOMIC_ADD; "
                "take those of modes.derive_modes."
            ),
        ),
        (
            {"direction": "loop_k", "inner_load": InnerLoadMode.CP_ASYNC},
            (
                "modes not available in BackwardConfig: got CP_ASYNC, TMA of loop_k, wanted "
                "TMA, TMA; or of loop_k CP_ASYNC or TMA_GATHER4 with TMA_1D or ATOMIC_ADD; "
                "take those of modes.derive_modes."
            ),
        ),
        (
            {"spt": True},
            (
                "spt without an order in BackwardConfig: got deterministic=False, wanted "
                "deterministic=True; leave spt out."
            ),
        ),
    ],
)
def test_what_is_not_available_is_refused(change, text):
    with pytest.raises(ConfigError) as raised:
        BackwardConfig(**change)

    assert str(raised.value) == text
