"""More heads from fewer: KV heads served to the query heads of their group."""

from dataclasses import replace

from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.plan import Plan


def with_heads(plan: Plan, heads: int) -> Plan:
    """The plan for `heads` heads; head h uses what head h // (heads / plan.heads) used.

    O(heads): patterns are shared, never copied.

    Raises:
        PlanError: if `heads` is not a multiple of the plan's.
    """
    heads = integer(heads, "heads", low=1)
    if heads % plan.heads:
        raise PlanError(
            sentence(
                what="heads do not divide",
                where="with_heads",
                got=f"heads={heads}",
                wanted=f"a multiple of the plan's {plan.heads} heads",
                remedy="plan for 1, HK or HQ heads",
            )
        )
    return replace(plan, pattern_id=plan.pattern_id.repeat_interleave(heads // plan.heads, dim=1))
