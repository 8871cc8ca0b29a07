"""`Contiguity`: how the keys that a plan selects lie, measured; and how they are best read.

NOTE [Blocks or tokens]: a plan in blocks of 128 computes every pair of a listed block, and a top-k
of single tokens lists nearly all of them: 32 times the pairs wanted at 128 of 4,096 keys. Gathering
reads single keys, by one of two lists: of each token (just the pairs selected, but keys are read
for one token's rows), or of each Q block (the keys that one of its queries selects, read once for
all its rows, with bits where they differ). Which of the three is least is decided by what the bits
say, not by how the plan was made: `Contiguity` counts the pairs of each, and `form` weighs them by
what a pair costs. A selection that comes in whole blocks has as many pairs each way, and stays in
blocks.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from maskplan.plan import Plan
from maskplan.threads import run_ranges

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contiguity:
    """Pairs that a plan computes, by how its keys are read, over (batch, head): measured.

    Attributes:
        blocks: of listed blocks.
        tiles: of the keys that some query of a Q block selects, with each of its queries.
        tokens: selected.
        block_size: of the blocks, in tokens.
    """

    blocks: int
    tiles: int
    tokens: int
    block_size: tuple[int, int]

    def form(self, pack: int) -> str:
        """The cheapest way to read the keys: "blocks", "tiles" or "tokens".

        Args:
            pack: query heads that read a list together.
        """
        rows, keys = self.block_size
        gathered = {
            "tokens": self.tokens * _gathered_cost(pack),
            "tiles": self.tiles * _gathered_cost(rows * pack),
        }
        best = min(gathered, key=lambda name: gathered[name])
        return best if gathered[best] < self.blocks * _block_cost(rows, keys) else "blocks"

    def __str__(self) -> str:
        share = self.tokens / max(self.blocks, 1)
        return f"{self.tokens:,} of {self.blocks:,} pairs in blocks ({share:.2%}) are selected"


# Time a pair takes, beside one of a large block: measured for float32, D of 64 and 128, forward and
# backward (benchmarks/gathered_cost.py).
_PANEL = 32  # keys of a panel, which a block fills up


def _block_cost(rows: int, keys: int) -> float:
    """Of a pair in blocks of `rows` by `keys`; of one row 3.5 forward and 2.2 backward."""
    return (1 + 1.6 / rows) * (-(-keys // _PANEL) * _PANEL / keys)


def _gathered_cost(rows: int) -> float:
    """Of a pair of `rows` rows that read one list; a key is packed for them, or read in place."""
    return 1.3 + min(2.9, 13 / rows)


def contiguity(plan: Plan, uses: Tensor | None = None) -> Contiguity:
    """What the bits of a plan say about how its keys lie; O(blocks + tiles).

    Args:
        plan: exact, or a device plan on the CPU.
        uses: int [any]: the pattern of each (batch, head) counted; None for those of the plan.
    """
    from maskplan.lower import gathered_kernel as kernels

    arrays, shape = arrays_of(plan), shape_of(plan)
    of_tiles = np.zeros((len(plan.tiles), 2), dtype=np.int64)
    if plan.tile_id is not None:
        run_ranges(
            lambda a, b: kernels.measure_tiles(arrays[3], a, b, of_tiles),
            len(of_tiles), smallest=256,
        )  # fmt: skip
    found = np.zeros((len(plan.row_ptr) - 1, 3), dtype=np.int64)
    run_ranges(
        lambda a, b: kernels.measure(arrays, shape, a, b, of_tiles, found),
        len(found), smallest=4096,
    )  # fmt: skip
    (bq, _), blocks = plan.block_size, max(plan.geometry.num_q_blocks, 1)
    tokens = np.minimum(bq, plan.seqlen_q - np.arange(blocks) * bq)
    by_line = found.reshape(-1, blocks, 3)
    by_line[:, :, 1] *= tokens[None, : by_line.shape[1]]
    numbers = plan.pattern_id if uses is None else uses
    weights = np.bincount(numbers.flatten().numpy(), minlength=len(by_line))
    totals = (by_line.sum(1) * weights[:, None]).sum(0)
    return Contiguity(
        blocks=int(totals[0]), tiles=int(totals[1]), tokens=int(totals[2]),
        block_size=plan.block_size,
    )  # fmt: skip


def arrays_of(plan: Plan) -> tuple[Array, Array, Array, Array]:
    """(row_ptr, col, tile_id, tiles) as the kernels take them."""
    tile_id = np.empty(0, np.int32) if plan.tile_id is None else plan.tile_id.numpy()
    return plan.row_ptr.numpy(), plan.col.numpy(), tile_id, plan.tiles.numpy()


def shape_of(plan: Plan) -> tuple[int, int, int, int, int]:
    """(SQ, SK, bq, bk, Q blocks, at least 1) as the kernels take them."""
    return plan.seqlen_q, plan.seqlen_k, *plan.block_size, max(plan.geometry.num_q_blocks, 1)
