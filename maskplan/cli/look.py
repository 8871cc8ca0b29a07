"""`maskplan show` and `maskplan stats`: a plan file in words and in a picture."""

from typing import Annotated

import typer

from maskplan import io
from maskplan import stats as figures
from maskplan.cli.options import HeadDim, PlanFile
from maskplan.viz.text import picture


def show(
    plan: PlanFile,
    rows: Annotated[int, typer.Option(help="Most cells down.")] = 24,
    cols: Annotated[int, typer.Option(help="Most cells across, up to 78.")] = 72,
    limit: Annotated[int, typer.Option(help="Most distinct patterns drawn.")] = 4,
) -> None:
    """Draw a plan, and say how it was made."""
    loaded = io.load(plan)
    print(picture(loaded, rows=rows, cols=cols, limit=limit))
    if loaded.provenance is not None:
        print(f"\nmade by {loaded.provenance}")
    print(f"digest {loaded.digest}")


def stats(plan: PlanFile, head_dim: HeadDim = 128) -> None:
    """Count what a plan keeps and costs: pairs, densities, blocks, balance, FLOPs, bytes."""
    print(figures.stats(io.load(plan), head_dim=head_dim))
