"""Plans with the padded lists of FlexAttention and FlashAttention-4."""

from collections.abc import Collection
from typing import Any

from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.lower.architecture import architecture_of
from maskplan.lower.engine_lists import fa4_lists, flex_lists
from maskplan.lower.lowered import LoweredPlan
from maskplan.plan import Plan

SHAPE = ("head_dim", "head_dim_v", "heads", "kv_heads", "arch")
_ARCHITECTURES = {"flex": ("cuda", "cpu"), "fa4": ("sm90", "sm100")}


def listed(
    plan: Plan,
    engine: str,
    *,
    backward: Collection[str] = ("loop_q",),
    head_dim: int = 128,
    head_dim_v: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    arch: str | None = None,
) -> LoweredPlan:
    """The plan with the padded lists of an engine, which are for one shape of heads.

    Args:
        plan: forward lists.
        engine: "flex" or "fa4".
        backward: ("loop_q",), or () where no gradient will be asked for.
        head_dim: D.
        head_dim_v: DV; None for D.
        heads: HQ; None for the plan's.
        kv_heads: HK; None for HQ.
        arch: for "fa4" "sm90" or "sm100", None for that of the plan's device or the current GPU;
            for "flex" "cuda" or "cpu", None for "cuda".

    Raises:
        PlanError: for a backward that is neither, an architecture that the engine does not have, or
            heads that do not divide among KV heads or do not fit the plan's.
        UnsupportedError: where the engine does not do it, or there is no GPU to ask for `arch`.
    """
    if not set(backward) <= {"loop_q"}:
        raise PlanError(
            sentence(
                what="direction not available",
                where=f"lists for {engine}",
                got=tuple(backward),
                wanted='("loop_q",) or ()',
                remedy="leave the rest out",
            )
        )
    if arch is not None and arch not in _ARCHITECTURES[engine]:
        raise PlanError(
            sentence(
                what="unknown architecture",
                where=f"lists for {engine}",
                got=repr(arch),
                wanted=" or ".join(map(repr, _ARCHITECTURES[engine])),
                remedy="name one of these",
            )
        )
    query_heads = integer(plan.heads if heads is None else heads, "heads", low=1)
    shape: dict[str, Any] = {
        "head_dim": integer(head_dim, "head_dim", low=1),
        "head_dim_v": integer(head_dim if head_dim_v is None else head_dim_v, "head_dim_v", low=1),
        "heads": query_heads,
        "kv_heads": integer(query_heads if kv_heads is None else kv_heads, "kv_heads", low=1),
        "backward": "loop_q" in backward,
    }
    _check_heads(plan, query_heads, shape["kv_heads"], engine)
    if engine == "flex":
        lists = flex_lists(plan, arch=arch or "cuda", **shape)
    else:
        lists = fa4_lists(plan, arch=arch or architecture_of(plan.device), **shape)
    return LoweredPlan(
        engine=engine,
        target=None,
        geometry=plan.geometry,
        pattern_id=plan.pattern_id,
        plan=plan,
        lists=lists,
    )


def _check_heads(plan: Plan, heads: int, kv_heads: int, engine: str) -> None:
    if heads % kv_heads == 0 and plan.heads in {1, kv_heads, heads}:
        return
    raise PlanError(
        sentence(
            what="heads do not fit",
            where=f"lists for {engine}",
            got=f"HQ={heads} with HK={kv_heads}, for a plan of {plan.heads} heads",
            wanted="HQ a multiple of HK, and a plan of 1, HK or HQ heads",
            remedy="pass heads= and kv_heads= of the call",
        )
    )
