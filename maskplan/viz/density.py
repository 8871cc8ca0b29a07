"""The density of a book over the steps and layers of a run."""

from typing import TYPE_CHECKING

from maskplan.book.plan_book import PlanBook
from maskplan.viz.canvas import axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def density_map(book: PlanBook, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the density of each step and layer, darker where more pairs are kept.

    Args:
        book: the plans.
        ax: matplotlib axes to draw into; a new figure by default.

    Returns:
        The axes: steps across, layers down, the colour bar beside them in density (token level).

    Raises:
        UnsupportedError: if matplotlib is not installed.
    """
    axes = axes_or_new(ax, (7.2, 5.0))
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figures = book.stats()
    steps, layers = book.steps, book.layers
    image = axes.imshow(
        figures.density_map.numpy().T,
        extent=(steps.start - 0.5, steps.stop - 0.5, layers.stop - 0.5, layers.start - 0.5),
        cmap="cividis_r",
        vmin=0.0,
        vmax=1.0,
        aspect="auto",
        interpolation="nearest",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel("layer", fontsize=9)
    axes.tick_params(labelsize=8)
    bar = axes.figure.colorbar(image, ax=axes, format=PercentFormatter(1.0))
    bar.set_label("density (tokens), mean over heads", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    steps_layers_heads = f"{len(steps)} steps, {len(layers)} layers, {len(book.heads)} heads"
    axes.set_title(
        f"{book.geometry}\n{steps_layers_heads}: {figures.density:.2%} of the pairs of the run",
        fontsize=10,
    )
    return axes
