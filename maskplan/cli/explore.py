"""`maskplan explore`: one HTML file to explore a plan or a book in a browser."""

from maskplan.cli.options import Force, Output, PlanOrBook
from maskplan.cli.output import free
from maskplan.cli.progress import working
from maskplan.cli.source import load


def explore(file: PlanOrBook, out: Output, force: Force = False) -> None:
    """Write a page to explore a plan or a book in any browser, without a network.

    It zooms and pans over the matrix, has sliders for heads, layers and steps,
    says which tokens a block holds, and shows in the latent frames which keys a
    query sees.
    """
    free(out, force=force)
    with working(f"writing {out.name}"):
        load(file).explore(out)
    print(f"{out}: {out.stat().st_size:,} bytes")
