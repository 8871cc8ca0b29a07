"""Plans from scores of blocks: the best k of a row, the best that make a share, those above a bar.

Scores are floats [batch, heads, M, N], one a pair of blocks; -inf is never selected. Equal scores
are taken in ascending order of KV blocks.
"""

import numpy as np
import torch
from torch import Tensor

from maskplan.build.host import float_tensor, index_tensor
from maskplan.errors import PlanError, sentence
from maskplan.geometry import Geometry, flag, integer, option
from maskplan.plan import Plan
from maskplan.select.block_scores import broadcast, checked_scores, selected
from maskplan.threads import run_ranges
from maskplan.untransformed import untransformed

_AXES = "[batch, heads, M, N]"
RULES = ("sparge", "xattention", "svg2")


@untransformed
def top_k(
    scores: Tensor,
    k: int | Tensor,
    seqlen_q: int,
    seqlen_k: int,
    *,
    block_size: tuple[int, int] = (128, 128),
    always: Tensor | None = None,
    nan: str = "error",
    empty: str = "error",
) -> Plan:
    """The k best KV blocks of each Q block, or all where there are fewer.

    Args:
        scores: floats [batch, heads, M, N].
        k: at least 1, as `budget` counts it; or int [.., M] broadcast to [batch, heads, M].
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        block_size: (bq, bk), in tokens.
        always: bool, broadcast to `scores`: blocks kept beside the k. (A score of +inf is the way
            to have a block among the k.)
        nan: "error", or "drop": a NaN is never selected.
        empty: "error", or "allow": rows without a block, and a k of 0.

    Raises:
        PlanTypeError: if a tensor has the wrong dtype or rank, or an option is unknown.
        PlanError: if scores are NaN, k is 0 or rows are empty and that is not allowed, or shapes do
            not fit.
    """
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    scores = checked_scores(scores, _AXES, nan)
    counts = _counts(k, scores, empty)

    def pick(row_scores: Tensor, b: int, h: int) -> Tensor:
        values, order = row_scores.sort(dim=1, descending=True, stable=True)
        best = torch.arange(order.shape[1]) < counts[b, h, :, None]
        taken = torch.zeros_like(row_scores, dtype=torch.bool)
        return taken.scatter_(1, order, best & (values > -torch.inf))

    return selected(scores, pick, geometry, always=always, empty=empty)


def _counts(k: int | Tensor, scores: Tensor, empty: str) -> Tensor:
    """int64 [batch, heads, M]."""
    if isinstance(k, Tensor):
        counts = broadcast(index_tensor(k, "k"), scores[..., 0], "k").to(torch.int64)
    else:
        counts = torch.full((), integer(k, "k")).expand(scores.shape[:3])
    low = 0 if empty == "allow" else 1
    bad = (counts < low).nonzero()
    if len(bad):
        place = tuple(bad[0].tolist())
        raise PlanError(
            sentence(
                what="top-k of 0 selects nothing" if counts[place] == 0 else "negative top-k",
                where=f"k{list(place)}" if isinstance(k, Tensor) else "k",
                got=int(counts[place]),
                wanted=f"at least {low}",
                remedy="round with budget(..., at_least=1), or pass empty='allow'",
            )
        )
    return counts


@untransformed
def top_p(
    mass: Tensor,
    p: float | Tensor,
    seqlen_q: int,
    seqlen_k: int,
    *,
    rule: str,
    at_least: int = 1,
    block_size: tuple[int, int] = (128, 128),
    always: Tensor | None = None,
    nan: str = "error",
    empty: str = "error",
) -> Plan:
    """The best KV blocks of each Q block that make a share p of its mass.

    In descending order of mass, with c[i] the sum of the first i + 1, block i is kept under

        "sparge"      if c[i] <= p: the block that crosses p is left out
        "xattention"  if c[i - 1] < p * c[last]: the one that crosses is kept; the sum starts with
                      the mass of `always`, and p is a share of the row's sum
        "svg2"        if c[i - 1] <= p: the one that crosses is kept

    and in any case for i < at_least. Sums are in float64.

    Clusters of unequal size are selected as blocks of one, block_size=(1, 1) over the numbers of
    clusters; `maskplan.interop.flashinfer.from_variable_blocks` gives them their sizes.

    Args:
        mass: floats [batch, heads, M, N], from 0 up: probabilities of each row for "sparge" and
            "svg2" (`size_weighted_softmax` for clusters), any for "xattention".
        p: the share; a number or floats [heads], as tuned per head.
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        rule: which of the three.
        at_least: blocks kept in any case, from those with mass; budget(N, density=ratio,
            rounding="floor") for SVG2's min_kc_ratio.
        block_size: (bq, bk), in tokens.
        always: bool, broadcast to `mass`: blocks kept whatever their mass (XAttention's sink and
            diagonal, SpargeAttn's dissimilar blocks).
        nan: "error", or "drop": a NaN counts as no mass.
        empty: "error", or "allow": rows without a block.

    Raises:
        PlanTypeError: if a tensor has the wrong dtype or rank, or an option is unknown.
        PlanError: if mass is NaN, negative or infinite, p is outside [0, 1], or a row is empty and
            that is not allowed.

    Sources: SpargeAttn `get_block_map_meansim` (searchsorted, right=True, at least 1); XAttention
    `find_blocks_chunked` (whose non-causal branch keeps block 0 besides: say so with `always`);
    SVG2 `identify_dynamic_map`.
    """
    option(rule, "rule", RULES)
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    mass = checked_scores(mass, _AXES, nan).masked_fill(mass.isnan(), 0.0)
    _check_mass(mass)
    shares = _shares(p, mass.shape[1])
    least = integer(at_least, "at_least")
    kept = None if always is None else broadcast(always, mass, "always")

    def pick(row_mass: Tensor, b: int, h: int) -> Tensor:
        weights = row_mass if row_mass.dtype == torch.float64 else row_mass.float()
        first, share = (
            torch.zeros(len(weights), dtype=torch.float64),
            shares[h].expand(len(weights)),
        )
        if rule == "xattention":
            share = share * row_mass.double().sum(dim=1)
            if kept is not None:
                first = weights.double().masked_fill(~kept[b, h], 0.0).sum(dim=1)
                weights = weights.masked_fill(kept[b, h], 0.0)
        return _best_share(weights, first, share, rule, least)

    return selected(mass, pick, geometry, always=always, empty=empty)


def _best_share(weights: Tensor, first: Tensor, share: Tensor, rule: str, least: int) -> Tensor:
    """Bool [M, N]: what rows of `weights` keep, sums starting at `first`; see `top_p`."""
    from maskplan.select import share_kernel as kernels

    numbers = (weights + 0.0).contiguous().numpy()  # +0 for -0, whose bits are another order
    bits = numbers.view(np.int64 if numbers.itemsize == 8 else np.int32)
    taken = np.zeros(numbers.shape, dtype=np.bool_)
    starts, shares = first.numpy(), share.contiguous().numpy()
    code = RULES.index(rule)
    run_ranges(
        lambda a, b: kernels.pick_share(numbers, bits, starts, shares, code, least, a, b, taken),
        len(numbers),
        smallest=16,
    )
    return torch.from_numpy(taken)


def _check_mass(mass: Tensor) -> None:
    bad = ((mass < 0) | mass.isinf()).nonzero()
    if len(bad):
        place = tuple(bad[0].tolist())
        raise PlanError(
            sentence(
                what="mass is negative or infinite",
                where=f"mass{list(place)}",
                got=float(mass[place]),
                wanted="numbers from 0 up",
                remedy="pass probabilities, scores.softmax(-1), not scores",
            )
        )


def _shares(p: float | Tensor, heads: int) -> Tensor:
    """float64 [heads]."""
    shares = float_tensor(p, "p")
    fits = shares.ndim == 0 or tuple(shares.shape) == (heads,)
    if not fits or not bool(((shares >= 0) & (shares <= 1)).all()):
        raise PlanError(
            sentence(
                what="share is out of range",
                where="p",
                got=shares.tolist(),
                wanted=f"a number from 0 to 1, or one for each of {heads} heads",
                remedy="pass the share of the mass to keep",
            )
        )
    return shares.expand(heads)


@untransformed
def threshold(
    scores: Tensor,
    bar: float | Tensor,
    seqlen_q: int,
    seqlen_k: int,
    *,
    strict: bool,
    block_size: tuple[int, int] = (128, 128),
    always: Tensor | None = None,
    nan: str = "error",
    empty: str = "error",
) -> Plan:
    """The KV blocks whose score reaches a bar.

    Args:
        scores: floats [batch, heads, M, N].
        bar: a number, or floats broadcast to `scores`, say [heads, 1, 1].
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        strict: whether a score has to exceed the bar (>), rather than reach it (>=).
        block_size: (bq, bk), in tokens.
        always: bool, broadcast to `scores`: blocks kept besides.
        nan: "error", or "drop": a NaN is never selected.
        empty: "error", or "allow": rows without a block.

    Raises:
        PlanTypeError: if a tensor has the wrong dtype or rank, or an option is unknown.
        PlanError: if scores or the bar are NaN, rows are empty and that is not allowed, or shapes
            do not fit.
    """
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    scores = checked_scores(scores, _AXES, nan)
    strict = flag(strict, "strict")
    bars = broadcast(float_tensor(bar, "bar"), scores, "bar")
    if bool(bars.isnan().any()):
        raise PlanError(
            sentence(
                what="bar is NaN",
                where="bar",
                got="NaN",
                wanted="a number",
                remedy="look for a mean of nothing where it was made",
            )
        )

    def pick(row_scores: Tensor, b: int, h: int) -> Tensor:
        values = row_scores.double()
        reached = values > bars[b, h] if strict else values >= bars[b, h]
        return reached & (values > -torch.inf)

    return selected(scores, pick, geometry, always=always, empty=empty)
