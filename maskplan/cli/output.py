"""Files that commands write: never over another one unasked."""

from pathlib import Path

from maskplan.errors import PlanError, sentence
from maskplan.plan import Plan


def free(path: Path, *, force: bool) -> Path:
    """`path`, checked before work begins that the result can be written there.

    Raises:
        PlanError: if its folder does not exist, it is a folder, or it exists and `force` is False.
    """
    if path.is_dir() or not path.parent.is_dir():
        got = "a folder" if path.is_dir() else f"no folder {path.parent}"
        _refuse("no file can be written", path, got, "a file in a folder that exists", "correct it")
    if path.exists() and not force:
        remedy = "pass --force to replace it, or name another file"
        _refuse("output exists", path, "a file that is there", "a new file", remedy)
    return path


def keep(plan: Plan, path: Path) -> None:
    """Save `plan` and say what it is."""
    plan.save(path)
    density = plan.stats().density
    heads = "" if plan.batch * plan.heads == 1 else f", batch {plan.batch}, heads {plan.heads}"
    print(f"{path}: {plan.geometry}{heads}, density {density:.4%}, digest {plan.digest}")


def _refuse(what: str, path: Path, got: str, wanted: str, remedy: str) -> None:
    raise PlanError(sentence(what=what, where=str(path), got=got, wanted=wanted, remedy=remedy))
