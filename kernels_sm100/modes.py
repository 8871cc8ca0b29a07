"""How a kernel loads its stream and stores what it makes: one total function says which way.

A block-sparse kernel streams whole blocks by TMA. An index-sparse one gathers tokens, four rows a
TMA load or row by row, and in LoopK adds dK and dV to rows that lie apart. `derive_modes` maps
every combination of what a launch is to its three modes, or to the reason why there is no such
kernel; nothing else decides them, and all three belong to a kernel's compile key.
"""

from dataclasses import dataclass
from enum import Enum

from kernels_sm100.errors import ConfigError, sentence


class InnerLoadMode(Enum):
    """How the streamed operand comes to shared memory."""

    TMA = 0  # one bulk tensor copy a block
    CP_ASYNC = 2  # 16 bytes a lane, a row of the token table at a time
    TMA_GATHER4 = 3  # one bulk tensor copy for four rows of the token table


class InnerStoreMode(Enum):
    """How what is made for each streamed block is added to global memory."""

    TMA = 0  # bulk tensor reduction of a swizzled tile
    TMA_1D = 1  # bulk reduction of one padded row at a time
    ATOMIC_ADD = 2  # element by element


class OuterStoreMode(Enum):
    """How what a CTA owns is stored at its end."""

    TMA = 0  # bulk tensor store
    STG = 1  # element by element, with predicates
    TMA_1D = 2  # bulk store of one row at a time


class Direction(Enum):
    """Which loop a kernel runs."""

    FORWARD = "forward"  # owns O, streams K and V
    LOOP_K = "loop_k"  # owns dQ, streams K and V, adds dK and dV
    LOOP_Q = "loop_q"  # owns dK and dV, streams Q and dO, adds dQ


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a launch is, as far as its modes depend on it.

    Attributes:
        direction: the loop.
        gathered: keys come from a table of tokens; False for whole blocks.
        gather4: gather by TMA, four rows at a time. It brings the same bytes in more instructions
            than cp.async, so it has to be asked for.
        even_rows: all batches and heads of K and V are rows and columns of one matrix, which is
            what a tensor map for gathering holds.
        varlen: sequences lie end to end, so that a tile may end inside of the next sequence.
        group: query heads packed into the rows of a Q tile; 1 without PackGQA.
        tile_rows: packed rows of a Q tile.
        atomics: add dK and dV of gathered rows element by element.
        deterministic: equal launches give equal bits.
    """

    direction: Direction
    gathered: bool = False
    gather4: bool = False
    even_rows: bool = True
    varlen: bool = False
    group: int = 1
    tile_rows: int = 128
    atomics: bool = False
    deterministic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """The three modes of a kernel; `inner_store` is None where nothing is added in the loop."""

    inner_load: InnerLoadMode
    inner_store: InnerStoreMode | None
    outer_store: OuterStoreMode


def why_not(launch: Launch) -> str | None:
    """The reason why there is no such kernel, or None where there is one."""
    backward = launch.direction is not Direction.FORWARD
    if launch.gathered and launch.direction is Direction.LOOP_Q:
        return "LoopQ owns whole KV blocks, and gathered tokens are none: use LoopK"
    if launch.gather4 and not launch.gathered:
        return "whole blocks need no gather: one TMA load takes all rows of a block"
    if launch.gather4 and not launch.even_rows:
        return "a TMA gather numbers rows of one matrix, which these are not: use cp.async"
    if launch.gathered and launch.varlen:
        return "a table of tokens counts keys from the start of one sequence"
    if launch.varlen and launch.direction is Direction.LOOP_K:
        return "LoopK adds to dK and dV by whole tiles, which would cross into the next sequence"
    if launch.deterministic and launch.direction is Direction.LOOP_K:
        return "LoopK adds to dK and dV in whichever order tiles end: use LoopQ"
    if launch.atomics and not (launch.gathered and launch.direction is Direction.LOOP_K):
        return "element atomics add rows that lie apart: dK and dV of a gathered LoopK alone"
    if backward and launch.group > 1 and launch.tile_rows % launch.group:
        return "a backward tile that cuts a token's packed rows has no whole rows to store"
    return None


def derive_modes(launch: Launch) -> Modes:
    """The modes of a launch.

    Raises:
        ConfigError: if there is no such kernel, with the reason.
    """
    reason = why_not(launch)
    if reason is not None:
        raise ConfigError(
            sentence(
                what="modes not available",
                where="derive_modes",
                got=launch,
                wanted="a launch that a kernel is written for",
                remedy=reason,
            )
        )
    gathered = launch.gathered
    inner_store: InnerStoreMode | None = None
    if launch.direction is Direction.LOOP_K and gathered:
        inner_store = InnerStoreMode.ATOMIC_ADD if launch.atomics else InnerStoreMode.TMA_1D
    elif launch.direction is not Direction.FORWARD:
        inner_store = InnerStoreMode.TMA
    return Modes(
        inner_load=_inner_load(launch),
        inner_store=inner_store,
        outer_store=_outer_store(launch),
    )


def _inner_load(launch: Launch) -> InnerLoadMode:
    """Whole blocks by TMA; tokens by cp.async, or by TMA if asked for."""
    if not launch.gathered:
        return InnerLoadMode.TMA
    return InnerLoadMode.TMA_GATHER4 if launch.gather4 else InnerLoadMode.CP_ASYNC


def _outer_store(launch: Launch) -> OuterStoreMode:
    """A tensor store where the tile is a box of its tensor, else what can stop at an edge.

    The backward has no room in shared memory for what a CTA owns: its threads store their rows.
    """
    packed = launch.group > 1
    if launch.direction is not Direction.FORWARD:
        return OuterStoreMode.STG
    if packed and (launch.varlen or launch.tile_rows % launch.group):
        return OuterStoreMode.STG
    return OuterStoreMode.TMA_1D if launch.varlen else OuterStoreMode.TMA
