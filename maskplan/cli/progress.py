"""What long work shows meanwhile: on a terminal only, on stderr, and gone when it is done."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def working(name: str) -> Iterator[None]:
    """Show that `name` is going on, and for how long."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        bar.add_task(name, total=None)
        yield
