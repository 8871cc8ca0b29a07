"""`maskplan verify`: a backend against the reference, on a plan of yours."""

from typing import Annotated

import typer

import maskplan as mp
from maskplan import io
from maskplan.cli.options import HeadDim, PlanFile


def verify(
    plan: PlanFile,
    backend: Annotated[str, typer.Option(help="Which backend, or auto.")] = "auto",
    head_dim: HeadDim = 64,
) -> None:
    """Run attention with a plan, forward and backward, and compare with the float64 reference."""
    loaded = io.load(plan)
    if isinstance(loaded, mp.TransposedPlan):
        loaded = loaded.transpose()
    report = mp.verify(loaded, backend=backend, head_dim=head_dim)
    print(report)
    report.raise_if_failed()
