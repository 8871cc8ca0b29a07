"""Lowering a plan before the calls that it is for, by the choice that these calls will make."""

from dataclasses import replace

from torch import Tensor

from maskplan.attention.choice import BACKENDS, ONLY_BY_NAME
from maskplan.attention.facts import asked_of
from maskplan.lower.lowered import LoweredPlan
from maskplan.plan import Plan


def lowered_ahead(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, *, backend: str, deterministic: bool
) -> Plan | LoweredPlan:
    """`plan` as `attention` takes it without further work, on the device of q.

    An exact plan can be cut into smaller blocks, which one on a GPU cannot be, so more backends can
    have it than could lower it in the call.

    Args:
        plan: exact, on the CPU.
        q: [B, SQ, HQ, D], only looked at: an expanded tensor will do. If it requires a gradient,
            the lists of a backward are made too.
        k: [B, SK, HK, D].
        v: [B, SK, HK, DV].
        backend: as in `attention`.
        deterministic: likewise.

    Returns:
        The plan lowered for the first backend that supports the call; the Plan where that one runs
        plans as they are, or where none does, and `attention` will say why.
    """
    asked = asked_of(q, k, v, plan, backward="auto", deterministic=deterministic)
    for one in BACKENDS:
        if backend != one.NAME and (backend != "auto" or one.NAME in ONLY_BY_NAME):
            continue
        as_it_is = "plan" in one.ENGINES
        call = asked if as_it_is else replace(asked, engine=one.ENGINES[0])
        if one.supports(call) is None:
            made = plan if as_it_is else one.lowering(call).of(plan)
            return made.to(q.device)
    return plan.to(q.device)
