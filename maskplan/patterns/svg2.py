"""Sparse VideoGen 2: clusters of queries that see clusters of keys, each head by its own labels."""

import numpy as np
from torch import Tensor

from maskplan.build.host import bool_tensor, rank
from maskplan.errors import PlanError, sentence
from maskplan.geometry import Geometry, flag
from maskplan.patterns.groups import Groups, own_patterns, plan_of_groups
from maskplan.patterns.label_order import LabelOrder
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.untransformed import untransformed


@untransformed
def svg2(
    q_order: LabelOrder,
    k_order: LabelOrder,
    kept: Tensor,
    *,
    block_size: tuple[int, int] = (128, 128),
    free_rows: bool = False,
) -> Plan:
    """The plan in which each cluster of queries sees whole clusters of keys.

    Queries lie in `q_order`, keys and values in `k_order`; clusters have unequal sizes, and
    `plan.density` weighs them by area. Text of either order sees, and is seen by, everything.
    Clusters do not end on block borders, so most blocks have bits of their own, 2 KiB for each of
    128 x 128 tokens: orders with `multiple` set, or a smaller bk, avoid that.

    Args:
        q_order: order of the queries, of `kept`'s batch and heads.
        k_order: order of the keys, with as many heads or a divisor of it (grouped queries).
        kept: bool [batch, heads, query clusters, key clusters].
        block_size: (bq, bk), in tokens.
        free_rows: let query slots that hold no token see what their cluster sees; their outputs are
            dropped by `LabelOrder.undo`. Else they see nothing, and their blocks need bits.

    Raises:
        PlanTypeError: if `kept` is not a bool tensor of 4 axes.
        PlanError: if batch, heads or clusters do not fit.

    Source: arXiv 2505.18875; `dynamic_map` with sizes of rows and columns.
    """
    free_rows = flag(free_rows, "free_rows")
    rank(bool_tensor(kept, "kept"), "kept", (4,), "[batch, heads, QC, KC]", "add the axes")
    _check(q_order, k_order, kept)
    batch, heads = kept.shape[:2]
    group = heads // k_order.heads
    geometry = Geometry(seqlen_q=q_order.seqlen, seqlen_k=k_order.seqlen, block_size=block_size)

    def groups(pattern: int) -> Groups:
        b, h = divmod(pattern, heads)
        map_ = kept[b, h].numpy()
        if k_order.text:
            map_ = np.insert(map_, 0 if k_order.text_first else map_.shape[1], True, axis=1)
        if q_order.text:
            map_ = np.insert(map_, 0 if q_order.text_first else map_.shape[0], True, axis=0)
        row_ptr = np.concatenate([[0], map_.sum(axis=1, dtype=np.int64).cumsum()])
        return Groups(
            q_runs=_runs(q_order, b, h, filled=free_rows),
            k_runs=_runs(k_order, b, h // group, filled=False),
            row_ptr=row_ptr,
            seen=map_.nonzero()[1].astype(np.int32),
        )

    parameters = {
        "clusters": [q_order.clusters, k_order.clusters],
        "text": [q_order.text, k_order.text],
        "multiple": [q_order.multiple, k_order.multiple],
        "free_rows": free_rows,
    }
    provenance = Provenance(builder="svg2", parameters=parameters)
    return plan_of_groups(batch * heads, groups, geometry, provenance, own_patterns(batch, heads))


def _runs(order: LabelOrder, b: int, h: int, *, filled: bool) -> np.ndarray:
    """Slots of each cluster, with those that fill it up or not, and text: int64 [groups, 2]."""
    starts, counts = order.starts[b, h].numpy(), order.counts[b, h].numpy()
    multiple = order.multiple if filled else 1
    runs = np.stack([starts, starts + -(-counts // multiple) * multiple], axis=1)
    if not order.text:
        return runs
    text = np.array([[order.text_start, order.text_start + order.text]])
    return np.concatenate([text, runs] if order.text_first else [runs, text])


def _check(q_order: LabelOrder, k_order: LabelOrder, kept: Tensor) -> None:
    batch, heads = kept.shape[:2]
    facts = {
        "batch": (batch, (q_order.batch, k_order.batch)),
        "heads of the queries": (heads, (q_order.heads,)),
        "query clusters": (kept.shape[2], (q_order.clusters,)),
        "key clusters": (kept.shape[3], (k_order.clusters,)),
    }
    for name, (got, wanted) in facts.items():
        if any(got != size for size in wanted):
            raise _fit_error(name, got, " and ".join(f"{size}" for size in wanted))
    if heads % k_order.heads:
        raise _fit_error("heads", heads, f"a multiple of the {k_order.heads} heads of the keys")


def _fit_error(name: str, got: int, wanted: str) -> PlanError:
    return PlanError(
        sentence(
            what=f"{name} of map and orders differ",
            where="kept",
            got=got,
            wanted=f"{wanted}, as the orders have",
            remedy="make map and orders from the same clustering",
        )
    )
