"""Options of `Plan.lower`, checked."""

from collections.abc import Collection

from maskplan.errors import PlanTypeError, sentence


def directions(backward: object) -> tuple[str, ...]:
    """Directions of a backward as `lower` takes them: names, or one name.

    Raises:
        PlanTypeError: if it is no collection of names.
    """
    if isinstance(backward, str):
        return (backward,)
    if isinstance(backward, Collection) and all(isinstance(name, str) for name in backward):
        return tuple(backward)
    raise PlanTypeError(
        sentence(
            what="argument is no collection of directions",
            where="backward",
            got=f"{backward!r:.80} of type {type(backward).__name__}",
            wanted='("loop_q",), ("loop_q", "loop_k"), "auto" or ()',
            remedy="pass () where no gradient will be asked for",
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
