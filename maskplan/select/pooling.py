"""Pooled queries and keys, and scores of blocks from them; padding takes no part.

Source: VSA (arXiv 2505.13389), SpargeAttn (2502.18137), SVG2 (2505.18875).
"""

import torch
from torch import Tensor

from maskplan.build.host import Integers, int_array
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import block_pair, integer

LAYOUTS = ("bshd", "bhsd")


def heads_first(x: Tensor, name: str, layout: str) -> Tensor:
    """`x` as [batch, heads, S, D].

    Raises:
        PlanTypeError: if it is not a float tensor of 4 axes, or the layout is unknown.
    """
    if layout not in LAYOUTS or not isinstance(x, Tensor) or x.ndim != 4:
        got = f"layout {layout!r}, shape {list(x.shape) if isinstance(x, Tensor) else type(x)}"
    elif not x.is_floating_point():
        got = str(x.dtype).removeprefix("torch.")
    else:
        return x.transpose(1, 2) if layout == "bshd" else x
    raise PlanTypeError(
        sentence(
            what="argument is not a tensor of queries or keys",
            where=name,
            got=got,
            wanted="floats [batch, S, heads, D] with layout='bshd', or 'bhsd'",
            remedy="pass it as attention takes it",
        )
    )


def mean_pool(
    x: Tensor, block: int, *, layout: str = "bshd", sizes: Integers | None = None
) -> Tensor:
    """Mean of the tokens of each block; the last one over those it has.

    Args:
        x: floats [batch, S, heads, D] (or "bhsd").
        block: tokens of a block.
        layout: "bshd" or "bhsd".
        sizes: int [blocks]: leading tokens of each block that are no padding, as VSA's tiles have
            them; what lies beyond is not looked at, NaN included.

    Returns:
        float32 [batch, heads, blocks, D]; 0 where a block has no tokens.

    Raises:
        PlanTypeError: if `x` is no such tensor, or `sizes` do not count its blocks.
        PlanError: if a size is negative or larger than its block.
    """
    tokens = heads_first(x, "x", layout)
    block = integer(block, "block", low=1)
    batch, heads, length, depth = tokens.shape
    count = -(-length // block)
    room = torch.full((count,), block)
    if count:
        room[-1] = length - (count - 1) * block
    valid = room
    if sizes is not None:
        valid = torch.from_numpy(int_array(sizes, "sizes", (count,)))
        bad = ((valid < 0) | (valid > room)).nonzero()
        if len(bad):
            at = int(bad[0, 0])
            raise PlanError(
                sentence(
                    what="valid tokens do not fit their block",
                    where=f"sizes[{at}]",
                    got=int(valid[at]),
                    wanted=f"0 to {int(room[at])}",
                    remedy="pass the padded x that the sizes were made for",
                )
            )
    pooled = torch.zeros((batch, heads, count, depth), dtype=torch.float32, device=x.device)
    whole = length // block
    full = tokens[:, :, : whole * block].reshape(batch, heads, whole, block, depth)
    plain = bool((valid[:whole] == block).all())
    if whole and plain:
        pooled[:, :, :whole] = full.sum(dim=3, dtype=torch.float32)
    for at in range(whole if plain else 0, count):
        part = tokens[:, :, at * block : at * block + int(valid[at])]
        pooled[:, :, at] = part.sum(dim=2, dtype=torch.float32)
    return pooled / valid.clamp(min=1).to(x.device)[:, None]


def pooled_scores(
    q: Tensor,
    k: Tensor,
    block_size: tuple[int, int],
    *,
    layout: str = "bshd",
    scale: float | None = None,
    q_sizes: Integers | None = None,
    k_sizes: Integers | None = None,
) -> Tensor:
    """Scores of pooled queries by pooled keys.

    Args:
        q: floats [batch, SQ, HQ, D].
        k: floats [batch, SK, HK, D]; HK divides HQ.
        block_size: (bq, bk), in tokens.
        layout: "bshd" or "bhsd".
        scale: 1 / sqrt(D) by default.
        q_sizes: as `mean_pool`, of the Q blocks.
        k_sizes: of the KV blocks; those without tokens score -inf.

    Returns:
        float32 [batch, HQ, M, N].

    Raises:
        PlanTypeError: as `mean_pool`.
        PlanError: as `mean_pool`, or if HK does not divide HQ, or batch or D differ.
    """
    bq, bk = block_pair(block_size)
    pooled_q = mean_pool(q, bq, layout=layout, sizes=q_sizes)
    pooled_k = mean_pool(k, bk, layout=layout, sizes=k_sizes)
    pooled_k = grouped(pooled_q, pooled_k)
    scale = pooled_q.shape[-1] ** -0.5 if scale is None else scale
    scores = pooled_q @ pooled_k.transpose(-1, -2) * scale
    if k_sizes is not None:
        empty = torch.from_numpy(int_array(k_sizes, "k_sizes", (pooled_k.shape[2],)) == 0)
        scores = scores.masked_fill(empty.to(scores.device), -torch.inf)
    return scores


def grouped(q: Tensor, k: Tensor) -> Tensor:
    """Keys [batch, HK, ...] repeated to the heads of queries [batch, HQ, ...].

    Raises:
        PlanError: if HK does not divide HQ, or batch or the last axis differ.
    """
    fits = q.shape[0] == k.shape[0] and q.shape[-1] == k.shape[-1]
    if not fits or not k.shape[1] or q.shape[1] % k.shape[1]:
        raise PlanError(
            sentence(
                what="queries and keys do not go together",
                where="q, k as [batch, heads, S, D]",
                got=f"{list(q.shape)} and {list(k.shape)}",
                wanted="equal batch and D, and HK that divides HQ",
                remedy="check the layout",
            )
        )
    return k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)


def size_weighted_softmax(scores: Tensor, sizes: Tensor) -> Tensor:
    """Softmax over blocks of unequal size: each counts as often as it has keys (SVG2).

    Args:
        scores: floats [..., N], of one key of each block.
        sizes: int [..., N], keys of each block; 0 gives 0.

    Returns:
        float32 [..., N]; 0 in a row of which no block has a key.
    """
    logits = scores.float().masked_fill(sizes == 0, -torch.inf)
    top = logits.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    weights = (logits - top).exp() * sizes
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)


def similar_blocks(x: Tensor, block: int, bar: float | Tensor, *, layout: str = "bshd") -> Tensor:
    """Blocks whose tokens point one way: mean cosine of all pairs above a bar (SpargeAttn).

    The mean is |sum of unit tokens|^2 / n^2 over the n tokens a block has. Blocks that are not
    similar have no mean that stands for them: SpargeAttn keeps their rows and columns whole.

    Args:
        x: floats [batch, S, heads, D].
        block: tokens of a block.
        bar: simthreshd1, a number or floats [heads].
        layout: "bshd" or "bhsd".

    Returns:
        bool [batch, heads, blocks].
    """
    tokens = heads_first(x, "x", layout).float()
    unit = torch.nn.functional.normalize(tokens, dim=-1, eps=1e-12)
    mean = mean_pool(unit, block, layout="bhsd")
    bars = torch.as_tensor(bar, dtype=torch.float32, device=x.device)
    return mean.square().sum(dim=-1) > (bars[:, None] if bars.ndim else bars)
