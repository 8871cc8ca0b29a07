"""The program's commands; each module beside this one does the work of one or two of them."""

from typing import Annotated

import typer

from maskplan.cli import (
    make_attended,
    make_neighborhood,
    make_scored,
    make_selected,
    make_sequences,
    make_video,
)
from maskplan.cli.advise import advise
from maskplan.cli.bench import bench
from maskplan.cli.convert import convert, formats
from maskplan.cli.demo import demo
from maskplan.cli.difference import diff
from maskplan.cli.doctor import doctor
from maskplan.cli.explore import explore
from maskplan.cli.look import show, stats
from maskplan.cli.pattern import make
from maskplan.cli.recall import recall
from maskplan.cli.run_book import book
from maskplan.cli.verify import verify

# Modules that add their patterns to `make` when they are imported.
PATTERNS = (
    make_sequences,
    make_video,
    make_neighborhood,
    make_scored,
    make_attended,
    make_selected,
)

app = typer.Typer(
    name="maskplan",
    help="Plan sparse attention exactly: make plans, keep them, look at them, convert them, check "
    "them. Start with maskplan demo; every command has a --help with an example.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    add_completion=False,
)


def _version(value: bool) -> None:
    if value:
        import maskplan

        print(f"maskplan {maskplan.__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which this is.")
    ] = False,
) -> None:
    """What stands before the commands."""


def _example(text: str) -> str:
    return f"Example: maskplan {text}"


app.command(epilog=_example("demo --grid 21,45,80"))(demo)
app.add_typer(make, name="plan")
app.command(epilog=_example("show sta.plan -o sta.png"))(show)
app.command(epilog=_example("explore sta.plan -o sta.html"))(explore)
app.command(epilog=_example("stats sta.plan --head-dim 128"))(stats)
app.command(epilog=_example("diff radial.plan shrunk.plan -o diff.png"))(diff)
app.command(epilog=_example("recall sta.plan --synthetic smooth --q-blocks 8"))(recall)
app.command(epilog=_example("advise sta.plan --spread 1,2,2"))(advise)
app.command(epilog=_example("convert sta.plan sta.npz --to bsr"))(convert)
app.command(epilog=_example("formats"))(formats)
app.add_typer(book, name="book")
app.command(epilog=_example("verify causal.plan --backend cpu"))(verify)
app.command(epilog=_example("bench --rows planning/window"))(bench)
app.command(epilog=_example("doctor"))(doctor)
