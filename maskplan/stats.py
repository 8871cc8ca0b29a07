"""What a plan keeps and what it costs: pairs, blocks, work and its balance, FLOPs and bytes.

NOTE [Density and sparsity]: papers and logs swap the two, so every figure here carries its name.
Density is kept pairs over all pairs and sparsity is 1 - density, both at token level; the figure
that counts blocks is always called block density.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.geometry import Geometry, integer
from maskplan.pairs import by_pattern, kept_by_block, visited_by_block
from maskplan.plan import BlockLists

FORWARD_FLOPS = 4  # a pair and a head channel: Q K^T and P V, a multiply and an add each
BACKWARD_FLOPS = 10  # Q K^T again, dP, dQ, dK and dV


def _ratio(part: int, whole: int, *, of_nothing: float) -> float:
    return part / whole if whole else of_nothing


def _imbalance(work: Tensor) -> float:
    """Largest over mean; 1.0 where there is no work at all."""
    total = int(work.sum())
    return int(work.max()) * work.numel() / total if total else 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanStats:
    """Figures of a plan over its (batch, heads), as `maskplan.stats.stats` counts them.

    Nothing is divided by zero: with no pairs at all (a length of 0) density and block density are
    0.0 and sparsity 1.0; with nothing visited amplification is 1.0, and infinite where only empty
    blocks are listed; with no work imbalances are 1.0.

    Attributes:
        geometry: lengths and block size, in tokens.
        head_dim: D of the FLOP counts.
        pairs: (query, key) pairs kept.
        all_pairs: batch * heads * SQ * SK.
        full_blocks: blocks in which every in-range pair is kept.
        mask_blocks: blocks in which some pairs are kept, not all.
        empty_blocks: blocks in which none is, listed or not.
        visited_pairs: in-range pairs of the listed blocks, which is what a kernel computes.
        bytes: size of the plan's arrays.
        pattern_id: int32 [batch, heads]: which row of the next two a (batch, head) uses.
        pattern_pairs: int64 [P]: pairs kept by each distinct pattern.
        pattern_work: int64 [P, rows]: blocks listed in each row of each distinct pattern.
    """

    geometry: Geometry
    head_dim: int
    pairs: int
    all_pairs: int
    full_blocks: int
    mask_blocks: int
    empty_blocks: int
    visited_pairs: int
    bytes: int
    pattern_id: Tensor
    pattern_pairs: Tensor
    pattern_work: Tensor

    @property
    def density(self) -> float:
        """Kept pairs over all pairs, at token level."""
        return _ratio(self.pairs, self.all_pairs, of_nothing=0.0)

    @property
    def sparsity(self) -> float:
        """1 - density: the share of pairs that is not kept."""
        return 1.0 - self.density

    @property
    def block_density(self) -> float:
        """Blocks that keep a pair over all blocks."""
        kept = self.full_blocks + self.mask_blocks
        return _ratio(kept, kept + self.empty_blocks, of_nothing=0.0)

    @property
    def amplification(self) -> float:
        """Visited pairs over kept pairs: 1.0 where every listed block is full."""
        nothing = float("inf") if self.visited_pairs else 1.0
        return _ratio(self.visited_pairs, self.pairs, of_nothing=nothing)

    @property
    def row_work(self) -> Tensor:
        """Blocks listed in each row of each head: int64 [batch, heads, rows]."""
        return self.pattern_work[self.pattern_id.long()]

    @property
    def head_work(self) -> Tensor:
        """Blocks listed by each head: int64 [batch, heads]."""
        return self.pattern_work.sum(dim=1)[self.pattern_id.long()]

    @property
    def head_pairs(self) -> Tensor:
        """Pairs kept by each head: int64 [batch, heads]."""
        return self.pattern_pairs[self.pattern_id.long()]

    @property
    def row_imbalance(self) -> float:
        """Largest over mean work of a row, over all (batch, head, row)."""
        return _imbalance(self.row_work)

    @property
    def head_imbalance(self) -> float:
        """Largest over mean work of a head, over all (batch, head)."""
        return _imbalance(self.head_work)

    @property
    def forward_flops(self) -> int:
        """4 * pairs * D: what a forward pass needs at least."""
        return FORWARD_FLOPS * self.pairs * self.head_dim

    @property
    def backward_flops(self) -> int:
        """10 * pairs * D: what a backward pass needs at least."""
        return BACKWARD_FLOPS * self.pairs * self.head_dim

    @property
    def visited_forward_flops(self) -> int:
        """4 * visited pairs * D: what a kernel that computes whole blocks does."""
        return FORWARD_FLOPS * self.visited_pairs * self.head_dim

    @property
    def visited_backward_flops(self) -> int:
        """10 * visited pairs * D: what a kernel that computes whole blocks does."""
        return BACKWARD_FLOPS * self.visited_pairs * self.head_dim

    def __str__(self) -> str:
        batch, heads = self.pattern_id.shape
        patterns = len(self.pattern_pairs)
        lines = [
            f"{self.geometry}, batch {batch}, heads {heads}, patterns {patterns}",
            *(f"  {name:<16} {value:>14}  {meaning}" for name, value, meaning in self._table()),
        ]
        return "\n".join(lines)

    def _table(self) -> list[tuple[str, str, str]]:
        """(name, value, meaning) of each printed line."""
        flops = f"D={self.head_dim}, kept pairs (visited:"
        return [
            ("density", f"{self.density:.4%}", "kept pairs / all pairs, token level"),
            ("sparsity", f"{self.sparsity:.4%}", "1 - density"),
            ("block density", f"{self.block_density:.4%}", "non-empty blocks / all blocks"),
            ("pairs", f"{self.pairs}", f"of {self.all_pairs}"),
            ("full blocks", f"{self.full_blocks}", "every pair kept"),
            ("mask blocks", f"{self.mask_blocks}", "some pairs kept, by bits"),
            ("empty blocks", f"{self.empty_blocks}", "never visited"),
            ("amplification", f"{self.amplification:.3f}", "visited pairs / kept pairs"),
            ("row imbalance", f"{self.row_imbalance:.3f}", "largest / mean blocks of a row"),
            ("head imbalance", f"{self.head_imbalance:.3f}", "largest / mean blocks of a head"),
            (
                "forward FLOPs",
                f"{self.forward_flops:.3e}",
                f"{flops} {self.visited_forward_flops:.3e})",
            ),
            (
                "backward FLOPs",
                f"{self.backward_flops:.3e}",
                f"{flops} {self.visited_backward_flops:.3e})",
            ),
            ("bytes", f"{self.bytes}", "of the plan's arrays"),
        ]


def stats(plan: BlockLists, *, head_dim: int = 128) -> PlanStats:
    """Count what `plan` keeps, visits and costs.

    Counted once per distinct pattern, in O(blocks + tiles), and expanded by pattern_id. Full, mask
    and empty go by the pairs a block keeps, whether or not the plan is canonical; work and visited
    pairs go by the blocks it lists.

    Args:
        plan: a Plan or a TransposedPlan, whose rows are KV blocks.
        head_dim: D of the FLOP counts, at least 1.

    Returns:
        The figures.

    Raises:
        PlanTypeError: if head_dim is not an integer.
        PlanError: if it is below 1.
    """
    head_dim = integer(head_dim, "head_dim", low=1)
    axes = plan.axes
    kept, area = kept_by_block(plan).cpu(), visited_by_block(plan).cpu()
    used = plan.pattern_id.cpu().reshape(-1)
    uses = torch.bincount(used, minlength=plan.num_patterns).tolist()

    def total(by_block: Tensor) -> int:
        # Python integers: pairs of one long pattern fit 64 bits, those of all heads may not.
        counts = by_pattern(plan, by_block.long()).tolist()
        return sum(use * count for use, count in zip(uses, counts, strict=True))

    heads = plan.batch * plan.heads
    full, some = total(kept == area), total((kept > 0) & (kept < area))
    arrays = (plan.pattern_id, plan.row_ptr, plan.col, plan.tile_id, plan.tiles)
    return PlanStats(
        geometry=plan.geometry,
        head_dim=head_dim,
        pairs=total(kept),
        all_pairs=heads * axes.row_len * axes.col_len,
        full_blocks=full,
        mask_blocks=some,
        empty_blocks=heads * axes.rows * axes.cols - full - some,
        visited_pairs=total(area),
        bytes=sum(array.nbytes for array in arrays if array is not None),
        pattern_id=plan.pattern_id.cpu(),
        pattern_pairs=by_pattern(plan, kept),
        pattern_work=plan.row_ptr.diff().cpu().reshape(plan.num_patterns, axes.rows),
    )
