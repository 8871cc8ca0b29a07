"""The command line, `maskplan`: plan, keep, look at, convert, check and demonstrate."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from maskplan.cli.plain import plain
from maskplan.errors import MaskplanError, sentence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake of the caller is one line on stderr and exit code 1.

    Args:
        arguments: words after the program's name; those of the process by default.

    Raises:
        SystemExit: always, with the exit code.
    """
    from maskplan.cli.app import app

    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            app(args=None if arguments is None else list(arguments), prog_name="maskplan")
        except (MaskplanError, OSError) as error:
            sys.exit(f"maskplan: {plain(error)}")
        except MemoryError as error:
            sys.exit(f"maskplan: {plain(_too_large(error))}")


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line, without the place in the source that gave it."""
    print(f"maskplan: warning: {plain(message)}", file=sys.stderr)


def _too_large(error: MemoryError) -> str:
    return sentence(
        what="not enough memory",
        where="this command",
        got=str(error).partition("\n")[0] or "a failed allocation",
        wanted="a plan that fits",
        remedy="use larger blocks, fewer tokens or fewer heads",
    )
