"""How good a plan is for given queries and keys: what attention it keeps, what error it causes.

Pattern authors tune on these. Both are made by the block-sparse engine, one pass under the plan and
one under the full plan; nothing of size SQ x SK is held.

Slots that hold no token, padding of the token order that a plan's provenance states, are no queries
and no keys: they would count as queries that keep nothing, and as keys that dense attention sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.attention import attention
from maskplan.attention.call import make_call
from maskplan.build import full
from maskplan.build.host import int_array
from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.plan import Plan

_TOKENS = {"bshd": 1, "bhsd": 2}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanQuality:
    """What a plan keeps of one attention, per head.

    Attributes:
        recall: float64 [B, HQ]: mean over queries of the share of softmax mass kept, 0 to 1.
        output_error: float64 [B, HQ]: norm of (sparse - dense output) over that of the dense one.
        queries: how many queries were looked at, padding left out.
    """

    recall: Tensor
    output_error: Tensor
    queries: int

    def __str__(self) -> str:
        heads = [
            f"  head ({b}, {h})  recall {self.recall[b, h]:.4f}  "
            f"output error {self.output_error[b, h]:.4f}"
            for b in range(self.recall.shape[0])
            for h in range(self.recall.shape[1])
        ]
        mean = f"mean recall {self.recall.mean():.4f}, output error {self.output_error.mean():.4f}"
        return "\n".join([f"{mean} over {self.queries} queries", *heads])


def recall(
    q: Tensor,
    k: Tensor,
    plan: Plan,
    *,
    scale: float | None = None,
    layout: str = "bshd",
    q_blocks: Sequence[int] | None = None,
) -> Tensor:
    """The share of attention mass that `plan` keeps, per head.

    For a query, the softmax weights of its kept keys: exp(LSE under the plan - LSE under all).
    A query that sees no key keeps nothing; with no keys at all nothing is lost, and recall is 1.

    Args:
        q: [B, SQ, HQ, D], as `attention` takes it.
        k: [B, SK, HK, D].
        plan: for these lengths.
        scale: factor of the scores; None for 1 / sqrt(D).
        layout: "bshd" or "bhsd".
        q_blocks: numbers of the plan's Q blocks to look at; None for all. A sample of them costs
            that share of the work.

    Returns:
        float64 [B, HQ], the mean over the queries looked at, padding left out; NaN if there are
        none.

    Raises:
        PlanError: on a Q block that does not exist, and whatever `attention` refuses.
    """
    # One channel of zeros: only the LSE is wanted, and a narrow V makes it cheap.
    value = torch.zeros_like(k[..., :1]) if isinstance(k, Tensor) and k.ndim == 4 else k
    _check(q, k, value, plan, scale, layout)
    kept = [
        _shares(sparse, dense)
        for _, sparse, _, dense in _runs(q, k, value, plan, scale, layout, q_blocks)
    ]
    return torch.cat(kept, dim=2).mean(dim=2)


def quality(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    *,
    scale: float | None = None,
    layout: str = "bshd",
    q_blocks: Sequence[int] | None = None,
) -> PlanQuality:
    """Recall, and the error of the output that the plan's omissions cause, per head.

    Args:
        q: [B, SQ, HQ, D], as `attention` takes it.
        k: [B, SK, HK, D].
        v: [B, SK, HK, DV].
        plan: for these lengths.
        scale: factor of the scores; None for 1 / sqrt(D).
        layout: "bshd" or "bhsd".
        q_blocks: numbers of the plan's Q blocks to look at; None for all.

    Raises:
        PlanError: on a Q block that does not exist, and whatever `attention` refuses.
    """
    _check(q, k, v, plan, scale, layout)
    kept: list[Tensor] = []
    missed = torch.zeros(q.shape[0], q.shape[3 - _TOKENS.get(layout, 1)], dtype=torch.float64)
    total = torch.zeros_like(missed)
    axes = (_TOKENS.get(layout, 1), 3)
    for out, lse, dense_out, dense_lse in _runs(q, k, v, plan, scale, layout, q_blocks):
        kept.append(_shares(lse, dense_lse))
        missed += (out.double() - dense_out.double()).square().sum(dim=axes).cpu()
        total += dense_out.double().square().sum(dim=axes).cpu()
    shares = torch.cat(kept, dim=2)
    # Nothing missed of nothing is no error.
    error = torch.where(missed == 0, missed, missed / total).sqrt()
    return PlanQuality(recall=shares.mean(dim=2), output_error=error, queries=int(shares.shape[2]))


def _shares(sparse: Tensor, dense: Tensor) -> Tensor:
    """Kept mass of each query, float64 [B, HQ, queries], from two LSEs."""
    share = (sparse.double() - dense.double()).exp()
    return torch.where(dense == -torch.inf, torch.ones_like(share), share).cpu()


def _check(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float | None, layout: str) -> None:
    """Refuse what `attention` refuses: runs of Q blocks would pass q of another length."""
    make_call(q, k, v, plan, scale=scale, layout=layout, backward="auto", deterministic=False)


def _runs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    scale: float | None,
    layout: str,
    q_blocks: Sequence[int] | None,
) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(out, lse, dense out, dense lse) of the queries of each run of Q blocks."""
    axis = _TOKENS.get(layout, 1)
    held_q, held_k = _held(plan)
    results = []
    with torch.no_grad():
        if held_k is not None:
            keys = held_k.to(k.device)
            dense_k, dense_v = k.index_select(axis, keys), v.index_select(axis, keys)
        else:
            dense_k, dense_v = k, v
        for part, start, stop in _parts(plan, q_blocks):
            queries = q.narrow(axis, start, stop - start)
            out, lse = attention(queries, k, v, part, scale=scale, layout=layout, return_lse=True)
            if held_q is not None:
                own = held_q[(held_q >= start) & (held_q < stop)].to(q.device) - start
                queries, out = queries.index_select(axis, own), out.index_select(axis, own)
                lse = lse.index_select(2, own)
            lengths = (queries.shape[axis], dense_k.shape[axis])
            whole = full(*lengths, block_size=part.block_size)
            dense_out, dense_lse = attention(
                queries, dense_k, dense_v, whole, scale=scale, layout=layout, return_lse=True
            )
            results.append((out, lse, dense_out, dense_lse))
    return results


def _held(plan: Plan) -> tuple[Tensor | None, Tensor | None]:
    """(queries, keys) that hold a token, int64 ascending; None for all of them."""
    from maskplan.viz.places import places_of  # which comes with pictures of PlanQuality

    places, _ = places_of(plan.provenance, plan.geometry)
    if places is None or (places.slots >= 0).all():
        return None, None
    held = torch.from_numpy(places.slots >= 0)
    first = places.query_start
    queries = held[first : first + plan.seqlen_q].nonzero()[:, 0]
    return queries, held.nonzero()[:, 0]


def _parts(plan: Plan, q_blocks: Sequence[int] | None) -> list[tuple[Plan, int, int]]:
    """(plan of a run of Q blocks, its first query, one past its last)."""
    if q_blocks is None:
        return [(plan, 0, plan.seqlen_q)]
    blocks = plan.geometry.num_q_blocks
    numbers = int_array(q_blocks, "q_blocks", (None,)).tolist()
    if not numbers:
        raise PlanError(
            sentence(
                what="no Q blocks to look at",
                where="q_blocks",
                got="none",
                wanted=f"some of 0 to {blocks - 1}",
                remedy="name some, or pass None for all",
            )
        )
    parts = []
    for block in numbers:
        start = integer(block, "q_blocks", high=blocks - 1) * plan.block_size[0]
        stop = min(start + plan.block_size[0], plan.seqlen_q)
        parts.append((plan.crop(q=(start, stop)), start, stop))
    return parts
