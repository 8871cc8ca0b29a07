"""matplotlib, loaded when a picture is drawn and not before."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from maskplan.errors import UnsupportedError, sentence
from maskplan.viz.palette import Rgb, hex_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESOLUTION = 640  # most pixels of a matrix along an axis: more than a figure shows


def pyplot() -> Any:
    """`matplotlib.pyplot`.

    Raises:
        UnsupportedError: if matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise UnsupportedError(
            sentence(
                what="pictures need matplotlib",
                where="the plot",
                got=f"no matplotlib ({error})",
                wanted="the extra 'viz'",
                remedy="pip install 'maskplan[viz]', or use print(plan) or plan.explore(path)",
            )
        ) from error
    return plt


def axes_or_new(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    """`ax`, or the axes of a new figure of `size` inches."""
    plt = pyplot()
    if ax is not None:
        return ax
    made: Axes = plt.subplots(figsize=size, layout="constrained")[1]
    return made


def panels(count: int, columns: int, size: float) -> "tuple[Figure, list[Axes]]":
    """A new figure with `count` panels of `size` inches, row by row, without ticks."""
    plt = pyplot()
    columns = min(columns, count)
    rows = -(-count // columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(max(size * columns, 4.2), (size + 0.45) * rows + 0.7),
        layout="constrained",
        squeeze=False,
    )
    every: list[Axes] = grid.ravel().tolist()
    for ax in every:
        ax.set_xticks([])
        ax.set_yticks([])
    for ax in every[count:]:
        ax.set_axis_off()
    return figure, every[:count]


def swatches(colours: Mapping[str, Rgb]) -> list[Any]:
    """Handles of a legend; padding is hatched, as it is drawn."""
    pyplot()
    from matplotlib.patches import Patch

    return [
        Patch(
            facecolor=hex_of(colour),
            edgecolor="#707070",
            linewidth=0.6,
            hatch="////" if name == "padding" else None,
            label=name,
        )
        for name, colour in colours.items()
    ]


def add_legend(axes: "Axes", colours: Mapping[str, Rgb], *, below: bool) -> None:
    """What colours mean: below the figure that holds `axes` alone, else in their corner."""
    handles, columns = swatches(colours), len(colours)
    if below:
        axes.figure.legend(
            handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False
        )
    else:
        axes.legend(handles=handles, loc="lower left", ncols=2, fontsize=7)


def resolution(blocks: int, most: int = RESOLUTION) -> int:
    """Pixels for an axis of `blocks` blocks, at most `most`: whole pixels a block if possible."""
    return most // blocks * blocks if 0 < blocks <= most else most
