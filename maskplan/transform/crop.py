"""Part of a plan: a range of queries and a range of keys."""

from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import MAX_SEQLEN, Geometry, integer
from maskplan.plan import Plan
from maskplan.transform.provenance import derived
from maskplan.transform.retile import retile


def _range(bounds: tuple[int, int] | None, name: str, length: int) -> tuple[int, int]:
    if bounds is None:
        return 0, length
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise PlanTypeError(
            sentence(
                what="range is not a pair",
                where=f"crop({name}=...)",
                got=repr(bounds),
                wanted="(start, stop), in tokens",
                remedy=f"pass {name}=(0, {length}), or None, for all of them",
            )
        )
    start, stop = (
        integer(bound, f"crop({name}=...)[{at}]", low=-MAX_SEQLEN)
        for at, bound in enumerate(bounds)
    )
    if not 0 <= start <= stop <= length:
        raise PlanError(
            sentence(
                what="range outside the plan",
                where=f"crop({name}=...)",
                got=f"[{start}, {stop})",
                wanted=f"0 <= start <= stop <= {length}, the plan's seqlen_{name}",
                remedy="pass token positions of this plan",
            )
        )
    return start, stop


def crop(plan: Plan, *, q: tuple[int, int] | None = None, k: tuple[int, int] | None = None) -> Plan:
    """The plan of queries [q[0], q[1]) and keys [k[0], k[1]) alone, both renumbered from 0.

    Its dense mask is that slice of the plan's. Bounds need not lie on blocks; None is everything.

    Raises:
        PlanTypeError: if a range is not a pair of integers.
        PlanError: if a range does not lie in the plan.
    """
    (q0, q1), (k0, k1) = _range(q, "q", plan.seqlen_q), _range(k, "k", plan.seqlen_k)
    geometry = Geometry(seqlen_q=q1 - q0, seqlen_k=k1 - k0, block_size=plan.block_size)
    result = retile(plan, geometry, (q0, k0))
    same = (q0, q1, k0, k1) == (0, plan.seqlen_q, 0, plan.seqlen_k)
    return derived(result, "crop", plan, parameters={"q": [q0, q1], "k": [k0, k1]}, keep_grid=same)
