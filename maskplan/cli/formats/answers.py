"""What the caller says of a file that the file does not: the options of `maskplan convert`."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from maskplan.errors import PlanError, sentence

Pair = tuple[int, int]
Triple = tuple[int, int, int]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Options by name; None is what was not given.

    Attributes:
        seqlen_q: SQ, in tokens; of formats for square masks, SK too.
        seqlen_k: SK, in tokens.
        block_size: (bq, bk), in tokens.
        canvas: latent (t, h, w), in tokens.
        tile: tokens of a tile along (t, h, w).
        steps: steps of the model.
        layers: layers of the model.
        heads: heads of the model.
        text: text tokens after the video.
        pad: tiles, or matrices, filled up to whole blocks.
        missing: the window of keys that a strategy leaves out.
        dense_steps: first steps that see everything.
        dense_window: the window that covers the canvas.
        loss: which loss of a search log.
        arch: GPU architecture.
        select_block: keys of a selected block.
        repeat: rows that share a list.
        causal: whether the attention call is causal.
        zeros: what stored zeros mean.
        superset: keep whole blocks where a part is kept.
    """

    seqlen_q: int | None = None
    seqlen_k: int | None = None
    block_size: Pair | None = None
    canvas: Triple | None = None
    tile: Triple | None = None
    steps: int | None = None
    layers: int | None = None
    heads: int | None = None
    text: int | None = None
    pad: bool | None = None
    missing: Triple | None = None
    dense_steps: int | None = None
    dense_window: Triple | None = None
    loss: str | None = None
    arch: str | None = None
    select_block: int | None = None
    repeat: int | None = None
    causal: bool | None = None
    zeros: str | None = None
    superset: bool | None = None

    @property
    def given(self) -> list[str]:
        """Names of the options that were given."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]

    @property
    def block(self) -> Pair:
        """Block size of a plan that may have any."""
        return (128, 128) if self.block_size is None else self.block_size


def need(value: Value | None) -> Value:
    """An answer that was checked to be there."""
    assert value is not None, "asked for before anything is read"
    return value


def flag(name: str) -> str:
    """How an option is written."""
    return "--" + name.replace("_", "-")


def check(answers: Answers, needed: tuple[str, ...], known: set[str], where: str) -> None:
    """Refuse answers that are missing, and those that nothing would look at.

    Raises:
        PlanError: naming the options.
    """
    missing = [flag(name) for name in needed if getattr(answers, name) is None]
    if missing:
        raise PlanError(
            sentence(
                what="file does not say all that a plan needs",
                where=where,
                got="no " + ", no ".join(missing),
                wanted=", ".join(flag(name) for name in needed),
                remedy="pass these options; `maskplan formats` lists what each format asks for",
            )
        )
    useless = [flag(name) for name in answers.given if name not in known]
    if useless:
        raise PlanError(
            sentence(
                what="option has no meaning here",
                where=where,
                got=", ".join(useless),
                wanted=", ".join(sorted(flag(name) for name in known)) or "no options",
                remedy="leave it out, or name another format",
            )
        )


def same_lengths(path: Path, found: tuple[int, int], answers: Answers) -> None:
    """Refuse lengths that were given and differ from those of the file.

    Raises:
        PlanError: naming both.
    """
    said = (answers.seqlen_q, answers.seqlen_k)
    if any(a is not None and a != b for a, b in zip(said, found, strict=True)):
        raise PlanError(
            sentence(
                what="lengths disagree",
                where=str(path),
                got=f"{found[0]} x {found[1]} tokens",
                wanted=f"{said[0]} x {said[1]}, as the options say",
                remedy="leave the options out, or name another file",
            )
        )
