"""Which backward a plan is for: LoopQ, which owns keys, or LoopK, which owns queries.

NOTE [LoopQ or LoopK]: both directions make the same products over the same pairs of tiles, so they
are told apart by the rest of what a pair and a work item move, in tiles of 128 rows, counted in
bytes of D = 1 in 16 bits:

    LoopQ   item: a KV block of a KV head    loads K, V; stores dK, dV              4 * 2 bytes
              split: shares of its group     loads K, V; adds dK, dV in float32     2 * 2 + 2 * 4
            pair                             loads Q, dO; adds dQ in float32        2 * 2 + 4
            beside it, a Q tile of a head    clears, reads and converts dQ          4 + 4 + 2
              split: a KV block              clears, reads and converts dK and dV   2 * (4 + 4 + 2)
    LoopK   item: a Q tile of a query head   loads Q, dO; stores dQ                 3 * 2
            pair                             loads K, V; adds dK, dV in float32     2 * 2 + 2 * 4
            beside it, a KV block            clears, reads and converts dK and dV   2 * (4 + 4 + 2)

Work items are started longest first on so many SMs, so the time of a direction is taken for that of
its longest item, or of an even share of all bytes if that is more (Graham, 1969, bounds the rest).
LoopK moves half as much again a pair, and wins where keys are few or some are seen by nearly all
queries: then LoopQ's long columns keep few SMs busy. With fewer items than SMs LoopQ splits a KV
head's group between CTAs (`head_split`). Coarse Q blocks of a LoopQ list add no pairs: a tile that
does not see an entry skips it. It is a model, and has not been measured on a GPU.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.plan import Plan

SMS = 148  # of a B200
AUTO = "auto"
_HALF, _FULL = 2, 4  # bytes of a 16-bit value, and of a float32
_LOOP_Q_ITEM, _LOOP_Q_PAIR = 4 * _HALF, 2 * _HALF + _FULL
_SPLIT_ITEM = 2 * _HALF + 2 * _FULL
_LOOP_K_ITEM, _LOOP_K_PAIR = 3 * _HALF, 2 * _HALF + 2 * _FULL
_SUMS = 2 * _FULL + _HALF  # clear, read, convert


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a direction moves, in pairs of LoopQ's size; see NOTE [LoopQ or LoopK].

    Attributes:
        items: work items.
        longest: of the longest item.
        share: of all items, and of the sums, on each SM.
    """

    items: int
    longest: float
    share: float

    @property
    def time(self) -> float:
        """The larger of the two."""
        return max(self.longest, self.share)

    def __str__(self) -> str:
        return (
            f"{self.items} items, the longest {self.longest:.1f}, a share of an SM {self.share:.1f}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardChoice:
    """What "auto" takes, and why.

    Attributes:
        direction: "loop_q" or "loop_k".
        reason: in words.
        loop_q: its estimate; None where nobody on the host knows the lists.
        loop_k: likewise.
    """

    direction: str
    reason: str
    loop_q: Estimate | None = None
    loop_k: Estimate | None = None

    def __str__(self) -> str:
        if self.loop_q is None or self.loop_k is None:
            return f"{self.direction}: {self.reason}"
        return (
            f"{self.direction}: {self.reason}\n"
            f"in pairs of LoopQ, on {SMS} SMs (a model, not a measurement):\n"
            f"  loop_q  {self.loop_q}\n"
            f"  loop_k  {self.loop_k}"
        )


def choose_direction(
    plan: Plan, *, kv_heads: int | None = None, group: int = 1, deterministic: bool = False
) -> BackwardChoice:
    """The direction for a plan in blocks of one tile each; see NOTE [LoopQ or LoopK].

    Args:
        plan: in the blocks that are walked.
        kv_heads: HK; None for the plan's heads, over the group where they are query heads.
        group: query heads per KV head; 1 where rows of a group are packed.
        deterministic: whether dK and dV must have equal bits in equal calls, which only LoopQ
            gives.
    """
    if deterministic:
        return BackwardChoice(
            direction="loop_q", reason="deterministic, and LoopK adds dK and dV in any order"
        )
    if plan.status is not None:
        return BackwardChoice(
            direction="loop_q", reason="a plan on a GPU, whose lists nobody on the host has seen"
        )
    rows, columns = _work(plan, _heads(plan, kv_heads, group), group)
    loop_q, loop_k = _loop_q(rows, columns), _loop_k(rows, columns)
    faster = "loop_k" if loop_k.time < loop_q.time else "loop_q"
    if faster == "loop_q":
        reason = "it adds one sum a pair where LoopK adds two, and its columns are even enough"
    else:
        reason = "a few long columns would keep LoopQ's SMs waiting"
    return BackwardChoice(direction=faster, reason=reason, loop_q=loop_q, loop_k=loop_k)


def _heads(plan: Plan, kv_heads: int | None, group: int) -> int:
    """Query heads of the call.

    Raises:
        PlanError: if the plan's heads do not fit.
    """
    if kv_heads is None:
        kv_heads = -(-plan.heads // group)
    kv_heads = integer(kv_heads, "kv_heads", low=1)
    if plan.heads not in (1, kv_heads, kv_heads * group):
        raise PlanError(
            sentence(
                what="plan has another number of heads",
                where="the choice of a backward",
                got=plan.heads,
                wanted=f"1, {kv_heads} KV heads or {kv_heads * group} query heads",
                remedy="pass kv_heads and group as the tensors have them",
            )
        )
    return kv_heads * group


def head_split(items: int, group: int, ctas: int) -> int:
    """CTAs of LoopQ that share a group: as few as keep all `ctas` busy, a divisor of the group.

    Args:
        items: KV blocks of all KV heads.
        group: query heads per KV head.
        ctas: that run at once.
    """
    splits = [split for split in range(1, group + 1) if group % split == 0]
    return next((split for split in splits if items * split >= ctas), group)


def _work(plan: Plan, heads: int, group: int) -> tuple[Tensor, Tensor]:
    """(pairs of Q tiles, flat; pairs of KV blocks [KV heads, heads of the group, N])."""
    height, width = plan.axes.rows, plan.axes.cols
    pattern = plan.pattern_id.long().repeat_interleave(heads // plan.heads, dim=1)
    by_row = plan.row_ptr.diff().view(plan.num_patterns, height)
    owner = torch.arange(len(by_row), device="cpu").repeat_interleave(by_row.sum(1))
    by_column = torch.bincount(owner * width + plan.col, minlength=len(by_row) * width)
    columns = by_column.view(len(by_row), width)[pattern]
    return by_row[pattern].reshape(-1), columns.reshape(plan.batch * heads // group, group, width)


def _loop_q(rows: Tensor, columns: Tensor) -> Estimate:
    heads, group, width = columns.shape
    split = head_split(heads * width, group, SMS)
    shares = columns.reshape(heads, split, group // split, width).sum(2).reshape(-1)
    sums = _SUMS * len(rows)
    if split == 1:
        return _estimate(shares, _LOOP_Q_ITEM, _LOOP_Q_PAIR, sums)
    return _estimate(shares, _SPLIT_ITEM, _LOOP_Q_PAIR, sums + 2 * _SUMS * heads * width)


def _loop_k(rows: Tensor, columns: Tensor) -> Estimate:
    blocks = columns.shape[0] * columns.shape[2]
    return _estimate(rows, _LOOP_K_ITEM, _LOOP_K_PAIR, 2 * _SUMS * blocks)


def _estimate(pairs: Tensor, item: int, pair: int, beside: int) -> Estimate:
    longest = int(pairs.max()) * pair + item if len(pairs) else 0
    total = int(pairs.sum()) * pair + item * len(pairs) + beside
    return Estimate(
        items=len(pairs), longest=longest / _LOOP_Q_PAIR, share=total / SMS / _LOOP_Q_PAIR
    )
