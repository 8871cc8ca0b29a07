"""Mask functions that FA4's forward may be given for the bits of a plan, and what they read.

`tiles` and `pairs` are those of maskplan's backend fa4, which read the plan's bit tiles: one word
of 32 keys a call, or a pair a call, as every backward has it. `dense` reads a bitmask of all pairs,
128 keys in one load of 16 bytes, as FA4's author does for token masks: the fewest instructions, and
SQ * SK / 8 bytes a head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from tests.kernels.peers.fa4 import K_BLOCK, Q_BLOCK, Case

VECTOR = 128  # keys of one load


@dataclass(frozen=True)
class Mask:
    """A mask function of FA4.

    Attributes:
        function: case -> mask_mod, compiled with FA4.
        tables: (case, keep bool [SQ, SK]) -> the tensors that it reads.
        ranks: of those tensors.
        align: bytes that their addresses are multiples of.
    """

    function: Callable[[Case], Any]
    tables: Callable[[Case, torch.Tensor], tuple[torch.Tensor, ...]]
    ranks: tuple[int, ...]
    align: int


def _plan_tables(_: Case, keep: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tables of maskplan, one pattern for all heads."""
    import maskplan
    from maskplan.lower.ranked_bits import ranked_bits

    plan = maskplan.from_token_mask(keep[None, None], block_size=(Q_BLOCK, K_BLOCK))
    found = ranked_bits(plan)
    return (found.first_line, found.words, found.before, found.content, found.tiles)


def _of_plan(name: str) -> Callable[[Case], Any]:
    def function(_: Case) -> Any:
        from maskplan.attention import fa4_mask

        return getattr(fa4_mask, name)((Q_BLOCK, K_BLOCK), 1)

    return function


def _dense_tables(_: Case, keep: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """int32 [SQ, words of a row], rows a multiple of 16 bytes."""
    rows, keys = keep.shape
    padded = torch.zeros(rows, -(-keys // VECTOR) * VECTOR, dtype=torch.int64)
    padded[:, :keys] = keep
    words = (padded.view(rows, -1, 32) << torch.arange(32)).sum(-1)
    return (words.to(torch.int32),)


@lru_cache
def _dense_function() -> Any:
    from cutlass import Int64, Uint32, cute

    @cute.jit
    def mask(_b: Any, _h: Any, q: Any, k: Any, _seqlen: Any, aux: Any) -> Any:
        table = aux[0]
        place = Int64(q[0]) * table.shape[1] + k[0] // 32
        source = cute.make_tensor(
            table.iterator + cute.assume(place, divby=4), cute.make_layout(VECTOR // 32)
        )
        words = cute.make_rmem_tensor(VECTOR // 32, Uint32)
        cute.autovec_copy(cute.recast_tensor(source, Uint32), words)
        return words.load()

    mask.__vec_size__ = VECTOR
    getattr(mask, "__wrapped__", mask).__cute_hash__ = "tests.kernels.peers.fa4_masks.dense"
    return mask


TABLE_RANKS = (2, 2, 2, 1, 3)
MASKS = {
    "tiles": Mask(_of_plan("vector_mask"), _plan_tables, TABLE_RANKS, 4),
    "pairs": Mask(_of_plan("scalar_mask"), _plan_tables, TABLE_RANKS, 4),
    "dense": Mask(lambda _: _dense_function(), _dense_tables, (2,), 16),
}
