"""XAttention: the mass of blocks by sums along antidiagonals.

Source: XAttention (arXiv 2503.16428), `xattn/src/Xattention.py` (`xattn_estimate`, mode "inverse").
"""

import torch
from torch import Tensor

from maskplan.errors import PlanError, sentence
from maskplan.geometry import flag, integer
from maskplan.select.pooling import grouped, heads_first

_PIECE_SCORES = 1 << 24  # scores held at a time


def antidiagonal_mass(
    q: Tensor,
    k: Tensor,
    *,
    block: int = 128,
    stride: int = 8,
    causal: bool,
    norm: float = 1.0,
    layout: str = "bshd",
) -> Tensor:
    """Mass of each pair of blocks, for `top_p(..., rule="xattention")`.

    Tokens are taken in groups of s = `stride`. The score of two groups is the sum of
    q[s - 1 - i] . k[i] over the tokens of a group, along the antidiagonal, over sqrt(D) * s * norm.
    A softmax over the groups of keys, summed over the groups of two blocks, is their mass. Groups
    past the keys take no part; tokens past the end of the last group count 0.

    Args:
        q: floats [batch, SQ, HQ, D].
        k: floats [batch, SK, HK, D]; HK divides HQ.
        block: tokens of a block, a multiple of `stride`.
        stride: s; 4, 8 or 16 in the paper.
        causal: groups of later keys take no part; SQ = SK.
        norm: divides the scores.
        layout: "bshd" or "bhsd".

    Returns:
        float32 [batch, HQ, M, N].

    Raises:
        PlanTypeError: if a tensor has the wrong dtype or rank.
        PlanError: if `stride` does not divide `block`, or `causal` and the lengths differ.
    """
    block, stride = integer(block, "block", low=1), integer(stride, "stride", low=1)
    queries, keys = heads_first(q, "q", layout).float(), heads_first(k, "k", layout).float()
    lengths = queries.shape[2], keys.shape[2]
    if block % stride:
        raise _error("stride does not divide the block", "stride", stride, f"a divisor of {block}")
    if flag(causal, "causal") and lengths[0] != lengths[1]:
        got = f"{lengths[0]} queries and {lengths[1]} keys"
        raise _error("causal scores of unequal lengths", "q, k", got, "equal lengths")
    keys = grouped(queries, keys)
    rows, cols = (-(-length // block) for length in lengths)
    q_groups = _groups(queries, stride, rows * block).flip(3).flatten(3)
    k_groups = _groups(keys, stride, cols * block).flatten(3)
    scale = queries.shape[-1] ** -0.5 / stride / norm
    real_q, real_k = (-(-length // stride) for length in lengths)
    per_block = block // stride
    mass = queries.new_zeros((*queries.shape[:2], rows, cols))
    step = max(1, _PIECE_SCORES // max(k_groups.shape[2] * per_block, 1))
    for b in range(queries.shape[0]):
        for h in range(queries.shape[1]):
            for top in range(0, rows, step):
                first, last = top * per_block, min(top + step, rows) * per_block
                scores = q_groups[b, h, first:last] @ k_groups[b, h].T * scale
                mass[b, h, top : top + step] = _summed(
                    scores, first, real_q, real_k, per_block, causal=causal
                )
    return mass


def _groups(x: Tensor, stride: int, length: int) -> Tensor:
    """[batch, heads, S, D] as [batch, heads, groups, stride, D], with zeros up to `length`."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, length - x.shape[2]))
    return padded.reshape(*x.shape[:2], length // stride, stride, x.shape[3])


def _summed(
    scores: Tensor, first: int, real_q: int, real_k: int, per_block: int, *, causal: bool
) -> Tensor:
    """Softmax of scores [query groups from `first`, key groups], summed over blocks."""
    q = torch.arange(first, first + len(scores), device=scores.device)[:, None]
    k = torch.arange(scores.shape[1], device=scores.device)
    absent = (k >= real_k) | ((k > q) & causal)
    weights = scores.masked_fill(absent, -torch.inf).softmax(dim=1)
    weights = weights.masked_fill((q >= real_q).expand_as(weights), 0.0)
    rows, cols = len(scores) // per_block, scores.shape[1] // per_block
    return weights.view(rows, per_block, cols, per_block).sum(dim=(1, 3))


def sink_and_diagonal(blocks: int) -> Tensor:
    """What XAttention keeps in any case when it is causal: bool [M, M], column 0 and the diagonal.

    (With `keep_sink` the published code marks row 0 in place of column 0.)
    """
    always = torch.eye(blocks, dtype=torch.bool)
    always[:, :1] = True
    return always


def _error(what: str, where: str, got: object, wanted: str) -> PlanError:
    remedy = "pass the sizes that the kernel takes"
    return PlanError(sentence(what=what, where=where, got=got, wanted=wanted, remedy=remedy))
