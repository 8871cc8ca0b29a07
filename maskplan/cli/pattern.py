"""What the commands of `maskplan plan` share: each is a function from its own options to a plan.

NOTE [Shared options]: where a result is saved, over what, in which blocks and on which grid are
options of nearly every pattern. `pattern` adds them to the signature that typer reads, so a
pattern's function takes values (a `Grid`, two integers) and gives a `Plan`, and no command can
forget to look for its output file before it works.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

import typer

from maskplan.cli.grid import GridText, Queries, Text, TextFirst, grid_of
from maskplan.cli.options import Block, Force, Output, pair
from maskplan.cli.output import free, keep
from maskplan.plan import Plan

make = typer.Typer(
    help="Make a plan from a named pattern, and save it. Each pattern has a --help of its own.",
    no_args_is_help=True,
)

_Function = TypeVar("_Function", bound=Callable[..., Plan])
_NONE = inspect.Parameter.empty


def pattern(
    panel: str, example: str, *, block_size: str = "128,128"
) -> Callable[[_Function], _Function]:
    """Make a command of `maskplan plan` of a function that gives a plan.

    Of its parameters `grid`, `queries` and `block_size` become the options that all commands have
    for them; the rest are its own, as typer reads them.

    Args:
        panel: under which the help lists it.
        example: a whole command line, for its help.
        block_size: the usual one.
    """

    def decorate(function: _Function) -> _Function:
        own = inspect.signature(function).parameters
        hints = get_type_hints(function, include_extras=True)
        shared = {"queries": (Queries, "all"), "block_size": (Block, block_size)}

        def command(**given: Any) -> None:
            out = free(given.pop("out"), force=given.pop("force"))
            if "block_size" in own:
                given["block_size"] = pair(given["block_size"], "--block-size")
            if "grid" in own:
                given["grid"] = grid_of(given["grid"], given.pop("text"), given.pop("text_first"))
            keep(function(**given), out)

        parameters = [_parameter("grid", GridText)] if "grid" in own else []
        mine = [
            _parameter(name, hints[name], own[name].default)
            for name in own
            if name != "grid" and name not in shared
        ]
        arguments = [one for one in mine if _is_argument(one.annotation)]
        parameters += [*arguments, _parameter("out", Output)]
        parameters += [one for one in mine if one not in arguments]
        if "grid" in own:
            parameters += [
                _parameter("text", Text, None),
                _parameter("text_first", TextFirst, None),
            ]
        parameters += [_parameter(name, *shared[name]) for name in shared if name in own]
        parameters.append(_parameter("force", Force, False))
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        make.command(rich_help_panel=panel, epilog=f"Example: {example}")(command)
        return function

    return decorate


def _parameter(name: str, annotation: Any, default: Any = _NONE) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _is_argument(annotation: Any) -> bool:
    """Whether typer takes it by its place."""
    return any(
        isinstance(part, typer.models.ArgumentInfo)
        for part in getattr(annotation, "__metadata__", ())
    )
