"""Options that several commands share, and the values they stand for."""

from pathlib import Path
from typing import Annotated

import typer

from maskplan.errors import PlanError, sentence

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.", show_default=False)]
Output = Annotated[
    Path, typer.Option("--out", "-o", help="Where the plan is saved.", show_default=False)
]
Block = Annotated[
    str, typer.Option("--block-size", help="Tokens per Q block and per KV block: 128,128.")
]
HeadDim = Annotated[int, typer.Option(help="D, channels of a head.")]


def numbers(text: str, name: str, count: int) -> tuple[int, ...]:
    """`text` such as "6,8,8" (or 6x8x8) as `count` integers.

    Raises:
        PlanError: if it is anything else.
    """
    parts = text.replace("x", ",").split(",")
    if len(parts) != count or not all(part.strip().lstrip("-").isdigit() for part in parts):
        raise PlanError(
            sentence(
                what="not a list of whole numbers",
                where=name,
                got=repr(text),
                wanted=f"{count} of them with commas between",
                remedy=f"pass {name} {','.join(['8'] * count)}, say",
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
    """`text` such as "6,8,8" as three integers.

    Raises:
        PlanError: if it is anything else.
    """
    first, second, third = numbers(text, name, 3)
    return first, second, third
