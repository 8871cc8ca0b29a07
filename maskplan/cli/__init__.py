"""The command line, `maskplan`: plan, keep, look at, check and demonstrate."""

import sys
from collections.abc import Sequence

from maskplan.errors import MaskplanError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake of the caller is one line on stderr and exit code 1.

    Args:
        arguments: words after the program's name; those of the process by default.

    Raises:
        SystemExit: always, with the exit code.
    """
    from maskplan.cli.app import app

    try:
        app(args=None if arguments is None else list(arguments))
    except (MaskplanError, OSError) as error:
        sys.exit(f"maskplan: {error}")
