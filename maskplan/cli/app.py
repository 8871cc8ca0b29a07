"""The program's commands; each module beside this one does the work of one or two of them."""

import typer

from maskplan.cli.demo import demo
from maskplan.cli.doctor import doctor
from maskplan.cli.look import show, stats
from maskplan.cli.make import make
from maskplan.cli.verify import verify

app = typer.Typer(
    name="maskplan",
    help="Plan sparse attention exactly: make plans, keep them, look at them, check them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(demo)
app.add_typer(make, name="plan")
for command in (show, stats, verify, doctor):
    app.command()(command)
