"""Which columns and diagonals matter, from the last queries: MInference's estimate.

Source: MInference, `minference_forward.py` (`vertical_and_slash_kernel`).
"""

import torch
from torch import Tensor

from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.select.pooling import grouped, heads_first


def vertical_slash_lines(
    q: Tensor,
    k: Tensor,
    *,
    vertical_size: int,
    slash_size: int,
    last: int = 64,
    first_columns: int = 30,
    near_diagonals: int = 100,
    layout: str = "bshd",
) -> tuple[Tensor, Tensor]:
    """The columns and diagonals with the most attention of the last queries.

    Args:
        q: floats [batch, S, HQ, D].
        k: floats [batch, S, HK, D]; HK divides HQ.
        vertical_size: columns to take, at least 1, or all where there are fewer.
        slash_size: diagonals to take, likewise.
        last: queries to look at, from the end.
        first_columns: leading columns that are taken before all others.
        near_diagonals: diagonals by the main one that are taken before all others.
        layout: "bshd" or "bhsd".

    Returns:
        (keys int64 [batch, HQ, columns], distances q - k int64 [batch, HQ, diagonals]), both
        ascending, for `vertical_slash`. Equal sums are taken from the nearer end.

    Raises:
        PlanTypeError: if a tensor has the wrong dtype or rank.
        PlanError: if the lengths differ, scores are NaN, or a size is 0.
    """
    queries, keys = heads_first(q, "q", layout).float(), heads_first(k, "k", layout).float()
    keys = grouped(queries, keys)
    seqlen = queries.shape[2]
    if seqlen != keys.shape[2] or not seqlen:
        raise _error("causal lines need one length", f"{seqlen} queries, {keys.shape[2]} keys")
    start = max(seqlen - integer(last, "last", low=1), 0)
    scores = queries[:, :, start:] @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5
    rows = torch.arange(start, seqlen, device=scores.device)
    later = torch.arange(seqlen, device=scores.device) > rows[:, None]
    weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
    if bool(weights.isnan().any()):
        raise _error("scores are NaN", "NaN in q @ k")
    columns = weights.sum(dim=2)
    distances = torch.zeros_like(columns)
    for place, row in enumerate(rows.tolist()):
        distances[..., : row + 1] += weights[:, :, place, : row + 1].flip(-1)
    columns[..., : integer(first_columns, "first_columns")] = torch.inf
    distances[..., : integer(near_diagonals, "near_diagonals")] = torch.inf
    return _top(columns, vertical_size, "vertical_size"), _top(distances, slash_size, "slash_size")


def _top(sums: Tensor, size: int, name: str) -> Tensor:
    count = min(integer(size, name, low=1), sums.shape[-1])
    order = sums.sort(dim=-1, descending=True, stable=True).indices
    return order[..., :count].sort(dim=-1).values


def _error(what: str, got: str) -> PlanError:
    remedy = "pass queries and keys of one causal sequence"
    return PlanError(
        sentence(what=what, where="q, k", got=got, wanted="numbers, SQ = SK", remedy=remedy)
    )
