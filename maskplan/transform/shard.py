"""Shares of a plan for several workers: by Q rows or by heads."""

from dataclasses import replace

from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.normal import canonical
from maskplan.plan import Plan
from maskplan.threads import bounds
from maskplan.transform.crop import crop
from maskplan.transform.provenance import derived


def shard(plan: Plan, axis: str, index: int, count: int) -> Plan:
    """Share `index` of `count` of the plan.

    Args:
        plan: the whole.
        axis: "q" shares whole Q blocks as evenly as they divide, the first shares one block larger;
            "heads" shares heads, which must divide evenly.
        index: which share, in [0, count).
        count: how many shares.

    Returns:
        A canonical plan: of the share's queries, all keys; or of the share's heads.

    Raises:
        PlanError: for an unknown axis, an index outside, or heads that do not divide.
    """
    count = integer(count, "count", low=1)
    index = integer(index, "index", high=count - 1)
    if axis == "q":
        blocks = bounds(plan.geometry.num_q_blocks, count, index)
        start, stop = (min(block * plan.block_size[0], plan.seqlen_q) for block in blocks)
        return crop(plan, q=(start, stop))
    if axis != "heads":
        raise PlanError(
            sentence(
                what="unknown axis",
                where="shard",
                got=repr(axis),
                wanted='"q" or "heads"',
                remedy="name one of these",
            )
        )
    if plan.heads % count:
        raise PlanError(
            sentence(
                what="heads do not divide",
                where="shard",
                got=f"{plan.heads} heads in {count} shares",
                wanted="a count that divides the heads",
                remedy="expand the plan with with_heads first, or choose another count",
            )
        )
    size = plan.heads // count
    part = plan.pattern_id[:, index * size : (index + 1) * size].contiguous()
    return derived(
        canonical(replace(plan, pattern_id=part)),
        "shard",
        plan,
        parameters={"axis": axis, "index": index, "count": count},
    )
