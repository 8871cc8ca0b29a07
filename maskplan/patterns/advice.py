"""What a size of video costs beyond its pairs, and which sizes near it cost less."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Protocol

import torch

from maskplan.errors import MaskplanError, PlanTypeError, sentence
from maskplan.geometry import integer
from maskplan.pairs import kept_pairs
from maskplan.patterns.grid import Grid
from maskplan.plan import Plan


class Fits(Protocol):
    """What is asked of a target: the legal block size next to one, as `maskplan.target` knows."""

    def fit(self, block_size: tuple[int, int], direction: str) -> tuple[int, int]:
        """The smallest legal block size that is not finer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCost:
    """What one size of video costs with a pattern, over all heads of its plan.

    Attributes:
        grid: the size.
        slots: keys of the plan, padding of its token order included.
        tail: tokens of the last KV block, or 0 where it is whole.
        frame_blocks: KV blocks per frame; where it is not whole, blocks drift against frames.
        kept: pairs kept.
        blocks: blocks listed.
        partial: those of them that need a mask.
        work: pairs that a kernel computes, whole blocks of them: blocks * bq * bk.
    """

    grid: Grid
    slots: int
    tail: int
    frame_blocks: Fraction
    kept: int
    blocks: int
    partial: int
    work: int

    @property
    def padding(self) -> int:
        """Slots without a token."""
        return self.slots - self.grid.seqlen

    @property
    def amplification(self) -> float:
        """Pairs computed for each pair kept; 1 is the least."""
        return self.work / self.kept if self.kept else 1.0

    @property
    def partial_share(self) -> float:
        """Blocks that need a mask, over all listed."""
        return self.partial / self.blocks if self.blocks else 0.0

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.grid.shape))
        return (
            f"{shape:>13s} {self.grid.seqlen:9d} {self.padding:8d} {self.tail:5d} "
            f"{float(self.frame_blocks):9.3f} {100 * self.partial_share:7.1f}% "
            f"{self.amplification:8.3f} {self.work / 1e9:10.3f}"
        )


_HEADER = (
    f"{'t x h x w':>13s} {'tokens':>9s} {'padding':>8s} {'tail':>5s} {'blocks/fr':>9s} "
    f"{'partial':>8s} {'computed':>8s} {'work, 1e9':>10s}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The cost of a size, and of those near it that compute less for each pair kept.

    Attributes:
        block_size: (bq, bk) that was counted in.
        here: the size asked about.
        better: sizes near it with a lower amplification, lowest first.
        refused: (grid, why) of sizes that the pattern does not take.
    """

    block_size: tuple[int, int]
    here: SizeCost
    better: tuple[SizeCost, ...]
    refused: tuple[tuple[Grid, str], ...] = field(default=())

    def __str__(self) -> str:
        bq, bk = self.block_size
        lines = [f"in blocks of {bq} x {bk} tokens", "", _HEADER, str(self.here), ""]
        if self.better:
            lines += ["sizes near it that compute less for each pair kept:", *map(str, self.better)]
        else:
            lines.append("no size near it computes less for each pair kept")
        if self.refused:
            grid, why = self.refused[0]
            shape = " x ".join(map(str, grid.shape))
            lines += ["", f"{len(self.refused)} sizes refused, such as {shape}: {why}"]
        return "\n".join(lines)


def advise(
    grid: Grid,
    pattern: Callable[[Grid], Plan],
    *,
    target: Fits | None = None,
    spread: tuple[int, int, int] = (0, 2, 2),
    most: int = 5,
) -> Advice:
    """What the ragged ends of a size cost with a pattern, and which sizes near it cost less.

    Plans every size of the spread, (2 * spread + 1) ones on each axis.

    Args:
        grid: the size asked about, with its text.
        pattern: makes the plan of a size: `lambda grid: radial(grid, decay=0.2)`, say.
        target: a kernel to plan for: costs are counted in its blocks, by `target.fit`; None counts
            in the pattern's own.
        spread: latent frames, rows and columns to go up and down.
        most: sizes to name at most.

    Raises:
        PlanTypeError: if `pattern` cannot be called or gives no Plan, or a number is no integer.
        PlanError: if a number is negative, or whatever `pattern` raises for `grid` itself.
    """
    most = integer(most, "most")
    t, h, w = (integer(s, f"spread[{a}]") for a, s in zip("thw", spread, strict=True))
    here, block_size = _cost(grid, pattern, target)
    better, refused = [], []
    for other in _near(grid, (t, h, w)):
        try:
            cost, _ = _cost(other, pattern, target)
        except MaskplanError as error:
            refused.append((other, str(error)))
            continue
        if cost.amplification < here.amplification:
            better.append(cost)
    better.sort(key=lambda cost: (cost.amplification, cost.work))
    return Advice(
        block_size=block_size, here=here, better=tuple(better[:most]), refused=tuple(refused)
    )


def _near(grid: Grid, spread: tuple[int, int, int]) -> Iterator[Grid]:
    t, h, w = (
        range(max(1, size - reach), size + reach + 1)
        for size, reach in zip(grid.shape, spread, strict=True)
    )
    for shape in ((a, b, c) for a in t for b in h for c in w):
        if shape != grid.shape:
            yield replace(grid, t=shape[0], h=shape[1], w=shape[2])


def _cost(
    grid: Grid, pattern: Callable[[Grid], Plan], target: Fits | None
) -> tuple[SizeCost, tuple[int, int]]:
    """The cost of one size, and the block size it is counted in."""
    plan = pattern(grid) if callable(pattern) else None
    if not isinstance(plan, Plan):
        raise PlanTypeError(
            sentence(
                what="pattern makes no plan",
                where="pattern",
                got=type(pattern if plan is None else plan).__name__,
                wanted="a function from a Grid to a Plan",
                remedy="pass lambda grid: sliding_tile(grid, window=(3, 3, 3)), say",
            )
        )
    kept = kept_pairs(plan)
    if target is not None:
        block_size = target.fit(plan.block_size, "forward")
        plan = plan if block_size == plan.block_size else plan.reblock(block_size)
    bq, bk = plan.block_size
    heads = torch.bincount(plan.pattern_id.flatten().long(), minlength=plan.num_patterns)
    at = torch.arange(0, len(plan.row_ptr), max(plan.geometry.num_q_blocks, 1), device="cpu")
    blocks = int((plan.row_ptr[at].diff() * heads).sum())
    partial = 0
    if plan.tile_id is not None:
        masked = torch.cat(
            [torch.zeros(1, dtype=torch.int64, device="cpu"), (plan.tile_id >= 0).cumsum(0)]
        )
        partial = int((masked[plan.row_ptr[at]].diff() * heads).sum())
    cost = SizeCost(
        grid=grid,
        slots=plan.seqlen_k,
        tail=plan.seqlen_k % bk,
        frame_blocks=grid.frame_blocks(bk),
        kept=kept,
        blocks=blocks,
        partial=partial,
        work=blocks * bq * bk,
    )
    return cost, (bq, bk)
