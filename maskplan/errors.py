"""The errors maskplan raises, and the one sentence they are written in.

Every message has five parts: what is wrong, where, what came, what was wanted and what to do.
"""


class MaskplanError(Exception):
    """Base of every error that maskplan raises on purpose."""


class PlanError(MaskplanError, ValueError):
    """A value that cannot be planned, or a plan that cannot be used as asked."""


class PlanTypeError(MaskplanError, TypeError):
    """A value of the wrong type, dtype or rank."""


class PlanFileError(PlanError):
    """A plan file that is damaged, or that this version does not know how to read."""


class UnsupportedError(MaskplanError, NotImplementedError):
    """A call that is meaningful, and that the chosen backend or target does not do."""


for _error in (MaskplanError, PlanError, PlanTypeError, PlanFileError, UnsupportedError):
    _error.__module__ = "maskplan"


def sentence(*, what: str, where: str, got: object, wanted: object, remedy: str) -> str:
    """One sentence with the five parts, in their fixed order.

    >>> sentence(what="col out of range", where="row 3", got=9, wanted="0 <= col < 8", remedy="fix")
    'col out of range in row 3: got 9, wanted 0 <= col < 8; fix.'
    """
    return f"{what} in {where}: got {got}, wanted {wanted}; {remedy}."
