"""`TokenTiles` as an argument of `attention`: what stands for them in a call."""

import torch

from maskplan.errors import PlanError, UnsupportedError, sentence
from maskplan.lower.lowered import LoweredPlan, of_token_tiles
from maskplan.lower.plan_cache import Lowering, PlanCache
from maskplan.lower.token_tiles import TokenTiles


def resolved(plan: object, cache: PlanCache | None = None) -> object:
    """The plan of token tiles that list blocks, the tables of others lowered; the rest as it is.

    Of tiles on a GPU these are views of their tables, which kernels there walk; nothing waits.

    Raises:
        UnsupportedError: of tables, in a compiled region.
    """
    if not isinstance(plan, TokenTiles):
        return plan
    if plan.plan is not None:
        return plan.plan
    if torch.compiler.is_compiling():
        raise UnsupportedError(
            sentence(
                what="TokenTiles cannot be lowered in a compiled region",
                where="attention",
                got="TokenTiles",
                wanted="a LoweredPlan, made outside",
                remedy="pass tiles.lower()",
            )
        )
    if cache is None:
        return of_token_tiles(plan)
    return cache.find(plan, Lowering(target="tokens"), plan.device)


def plan_of(plan: object) -> object:
    """The Plan of the pairs that token tiles attend; the rest as it is.

    Raises:
        PlanError: of lowered tables, which no plan can be made of.
    """
    if isinstance(plan, TokenTiles):
        return plan.to_plan()
    if isinstance(plan, LoweredPlan) and plan.plan is None:
        raise PlanError(
            sentence(
                what="lowered token tiles are no plan",
                where="verify",
                got=repr(plan),
                wanted="the TokenTiles that they were made of",
                remedy="pass these",
            )
        )
    return plan
