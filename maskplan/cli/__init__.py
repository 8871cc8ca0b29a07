"""The command line, `maskplan`: plan, keep, look at, convert, check and demonstrate."""

import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from kernels_sm100.errors import KernelError
from maskplan.cli.plain import plain
from maskplan.errors import MaskplanError, sentence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake of the caller is one line on stderr and exit code 1.

    So is what the emulator finds wrong with a kernel, and a kernel that cannot be compiled here.

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
        except (MaskplanError, KernelError, OSError) as error:
            sys.exit(f"maskplan: {_with_options(plain(error))}")
        except MemoryError as error:
            sys.exit(f"maskplan: {plain(_too_large(error))}")


def _with_options(text: str) -> str:
    """A remedy that names a flag of the library's, with the option that stands for it here.

    >>> _with_options("...; pass clamp=True to cut windows so.")
    '...; pass --clamp to cut windows so.'
    """
    return re.sub(
        r"\b(pass|or) (causal|clamp|pad|superset)=(True|False)\b",
        lambda found: f"{found[1]} --{'' if found[3] == 'True' else 'no-'}{found[2]}",
        text,
    )


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
