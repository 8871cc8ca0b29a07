"""Options of `Plan.lower`, checked."""

from collections.abc import Collection

from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.lower.direction import AUTO

_DIRECTIONS = {"loop_q", "loop_k"}
_WANTED = '("loop_q",), ("loop_q", "loop_k"), "auto" or ()'
_REMEDY = "pass () where no gradient will be asked for"


def directions(backward: object) -> tuple[str, ...]:
    """Directions of a backward as `lower` takes them: names, or one name.

    Raises:
        PlanTypeError: if it is no collection of names.
        PlanError: if they are others than "loop_q" and "loop_k", or "auto" alone.
    """
    names = (backward,) if isinstance(backward, str) else backward
    if isinstance(names, Collection) and all(isinstance(name, str) for name in names):
        found = tuple(names)
        if found == (AUTO,) or set(found) <= _DIRECTIONS:
            return found
        raise PlanError(
            sentence(
                what="unknown direction",
                where="backward",
                got=f"{backward!r:.80}",
                wanted=_WANTED,
                remedy=_REMEDY,
            )
        )
    raise PlanTypeError(
        sentence(
            what="argument is no collection of directions",
            where="backward",
            got=f"{backward!r:.80} of type {type(backward).__name__}",
            wanted=_WANTED,
            remedy=_REMEDY,
        )
    )


def check_known(
    given: Collection[str], known: Collection[str], where: str, remedy: str, wanted: str = ""
) -> None:
    """Refuse names in `given` that are not in `known`; `wanted` says them otherwise.

    Raises:
        PlanTypeError: if there are some.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise PlanTypeError(
            sentence(
                what="argument not known",
                where=where,
                got=", ".join(unknown),
                wanted=wanted or ", ".join(known),
                remedy=remedy,
            )
        )
