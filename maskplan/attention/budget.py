"""Whether a result is as good as its precision allows: an error budget, block by block.

NOTE [Error budget]: a tolerance by hand is too tight for one input and hides a bug in another. Here
the error against float64 may be twice what a peer of the same precision, computed another way,
shows on the same block, plus a rounding band: one unit in the last place of the block's largest
value, and a floor for values that cancel (`floor`, from the sizes of what was added up). A block is
(batch, head, tokens of one block), so that one wrong block or head cannot hide among right ones.
The norm of a block has a budget of its own, since an error that every element shares (a wrong
scale) may be small beside each element's rounding and still be wrong: twice the norm of the peer's
error, half a unit of the block's norm and what a shared rounding may change it by (`shared`), and
one floor, since errors that are independent hardly change a norm.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One block that is worse than its budget.

    Attributes:
        batch: its batch.
        head: its head.
        block: its block of tokens.
        error: largest difference to float64; inf where NaN or infinity stand in other places.
        budget: what was allowed.
        norm_ratio: norm of the result over the norm of the float64 one.
    """

    batch: int
    head: int
    block: int
    error: float
    budget: float
    norm_ratio: float

    def __str__(self) -> str:
        return (
            f"batch {self.batch}, head {self.head}, block {self.block}: error {self.error:.2e} "
            f"of {self.budget:.2e} allowed, norm ratio {self.norm_ratio:.6f}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One tensor against float64.

    Attributes:
        name: of the tensor.
        blocks: how many were compared.
        worst: largest error over its budget; at most 1 when all is well.
        faults: the blocks beyond their budget, worst first.
    """

    name: str
    blocks: int
    worst: float
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Whether every block kept its budget."""
        return not self.faults


def compare(
    name: str,
    found: Tensor,
    exact: Tensor,
    peer: Tensor,
    *,
    block: Tensor,
    floor: float | Tensor = 0.0,
    shared: float = 0.0,
) -> Comparison:
    """`found` against its budget.

    Args:
        name: for the report.
        found: [B, n, H, F], the result judged; its dtype sets the rounding band.
        exact: float64, the same shape.
        peer: another result of the same precision, the same shape.
        block: int64 [n], the block of each token.
        floor: absolute error that is always allowed, one number or [B, n, H, 1].
        shared: relative error that all elements of a block may share.

    Returns:
        The comparison, by (batch, head, block). Values must be NaN or infinite in the same places
        and with the same sign, and elsewhere differ by no more than the budget; norms of blocks
        differ by no more than theirs.
    """
    unit = torch.finfo(found.dtype).eps
    result, other = found.double(), peer.double()
    error = _difference(result, exact, mismatch=torch.inf)
    # A peer that is itself NaN somewhere must not widen the budget.
    noise = _difference(other, exact, mismatch=0.0)
    size = torch.nan_to_num(exact, nan=0.0, posinf=0.0, neginf=0.0).abs()
    names, place = torch.unique(block, return_inverse=True)
    worst, allowed = _largest(error, place, len(names)), _largest(noise, place, len(names))
    least = torch.as_tensor(floor, dtype=torch.float64, device=exact.device).expand(
        exact[..., :1].shape
    )
    largest = _largest(size, place, len(names))
    floors = _largest(least, place, len(names))
    budget = 2 * (allowed + unit * largest) + floors
    finite = exact.isfinite() & result.isfinite()
    exact_norm = _norm(exact.where(finite, 0), place, len(names))
    found_norm = _norm(result.where(finite, 0), place, len(names))
    ratio = found_norm / exact_norm
    peer_norm = _norm(noise, place, len(names))
    norm_budget = 2 * peer_norm + (unit / 2 + shared) * exact_norm + floors
    bad = ~((worst <= budget) & ((found_norm - exact_norm).abs() <= norm_budget))
    faults = [
        Fault(
            batch=b,
            head=h,
            block=int(names[i]),
            error=float(worst[b, i, h]),
            budget=float(budget[b, i, h]),
            norm_ratio=float(ratio[b, i, h]),
        )
        for b, i, h in bad.nonzero().tolist()
    ]
    faults.sort(key=lambda fault: fault.error / max(fault.budget, 1e-300), reverse=True)
    share = worst / budget.clamp(min=1e-300)
    return Comparison(
        name=name,
        blocks=worst.numel(),
        worst=float(share.max()) if share.numel() else 0.0,
        faults=tuple(faults),
    )


def _difference(found: Tensor, exact: Tensor, *, mismatch: float) -> Tensor:
    """|found - exact|; 0 where both are NaN or equal infinities, `mismatch` where only one is."""
    finite = found.isfinite() & exact.isfinite()
    same = (found.isnan() & exact.isnan()) | (found == exact)
    difference = (found.where(finite, 0) - exact.where(finite, 0)).abs()
    return difference.masked_fill(~finite & ~same, mismatch)


def _largest(values: Tensor, place: Tensor, count: int) -> Tensor:
    """Largest of [B, n, H, F] over features and the tokens of each block, [B, count, H]."""
    batch, _, heads, _ = values.shape
    largest = values.new_zeros(batch, count, heads)
    for i in range(count):
        largest[:, i] = values[:, place == i].amax((1, 3))
    return largest


def _norm(values: Tensor, place: Tensor, count: int) -> Tensor:
    """Norm of [B, n, H, F] over features and the tokens of each block, [B, count, H]."""
    batch, _, heads, _ = values.shape
    squares = values.new_zeros(batch, count, heads)
    return squares.index_add_(1, place, values.square().sum(-1)).sqrt()
