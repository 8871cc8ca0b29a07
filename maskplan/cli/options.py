"""Options that several commands share, and the values they stand for."""

import re
from pathlib import Path
from typing import Annotated

import typer

from maskplan.errors import PlanError, sentence

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.", show_default=False)]
PlanOrBook = Annotated[
    Path, typer.Argument(metavar="FILE", help="A plan file or a book.", show_default=False)
]
Output = Annotated[
    Path, typer.Option("--out", "-o", help="Where the result is saved.", show_default=False)
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace a file that is there.")]
Block = Annotated[
    str, typer.Option("--block-size", help="Tokens per Q block and per KV block: 128,128.")
]
HeadDim = Annotated[int, typer.Option(help="D, channels of a head.")]
Step = Annotated[int | None, typer.Option(help="Of a book: which step.", show_default=False)]
Layer = Annotated[int | None, typer.Option(help="Of a book: which layer.", show_default=False)]
Head = Annotated[
    int | None, typer.Option(help="Of a book: which head; all where not given.", show_default=False)
]

_WHOLE = re.compile(r"-?[0-9]{1,10}")


def numbers(text: str, name: str, count: int | None = None) -> tuple[int, ...]:
    """`text` such as "6,8,8" (or 6x8x8) as `count` integers, or as many as it has.

    Raises:
        PlanError: if it is anything else.
    """
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    right = len(parts) == (count or len(parts))
    if not right or not all(_WHOLE.fullmatch(part) for part in parts):
        raise PlanError(
            sentence(
                what="not a list of whole numbers",
                where=name,
                got=f"{text!r:.80}",
                wanted=f"{count or 'some'} of them with commas between",
                remedy=f"pass {name} {','.join(['8'] * (count or 3))}, say",
            )
        )
    return tuple(int(part) for part in parts)


def pair(text: str, name: str) -> tuple[int, int]:
    """`text` such as "128,128" as two integers.

    Raises:
        PlanError: if it is anything else.
    """
    first, second = numbers(text, name, 2)
    return first, second


def triple(text: str, name: str) -> tuple[int, int, int]:
    """`text` such as "6,8,8" as three sizes along (t, h, w), from 1 up.

    Raises:
        PlanError: if it is anything else.
    """
    first, second, third = numbers(text, name, 3)
    if min(first, second, third) < 1:
        raise PlanError(
            sentence(
                what="size is below 1",
                where=name,
                got=repr(text),
                wanted="three sizes along t, h and w, each at least 1",
                remedy=f"pass {name} 6,8,8, say",
            )
        )
    return first, second, third
