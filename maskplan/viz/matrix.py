"""A plan as a matrix of queries by keys, drawn by matplotlib."""

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import integer
from maskplan.plan import BlockLists, Plan
from maskplan.viz.canvas import RESOLUTION, add_legend, axes_or_new, resolution
from maskplan.viz.closeup import kept_in_mask_blocks
from maskplan.viz.palette import DROPPED, LEGEND, coloured
from maskplan.viz.places import Places, places_of
from maskplan.viz.raster import Window, rasterise, whole_window

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Range = tuple[int, int]
_TICKS = 6
_FRAME_TICKS = 12


def plot(
    plan: BlockLists,
    *,
    batch: int = 0,
    head: int = 0,
    q: Range | None = None,
    k: Range | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the mask of one head: full, partial and empty blocks, and padding.

    Drawn from the lists at the resolution of the screen, O(blocks + pixels), however long the
    sequences are. Where a pixel stands for several blocks it is paler the fewer are listed, never
    so pale that one is lost, and mixes the colours of full and partial. Windows of few tokens show
    which pairs a partial block keeps. The axes count tokens;
    where the plan's provenance has a latent grid, the far sides have frames or (t, h, w).

    Args:
        plan: a Plan, drawn with queries down and keys across, or a TransposedPlan, with keys down.
        batch: which batch.
        head: which head.
        q: queries [first, stop) to draw; all by default.
        k: keys [first, stop) to draw; all by default.
        ax: matplotlib axes to draw into; a new figure by default.

    Returns:
        The axes. Save the picture with `ax.figure.savefig(path)`.

    Raises:
        UnsupportedError: if matplotlib is not installed.
        PlanTypeError: if a number is not an integer, or a range no pair.
        PlanError: if one is out of range.
    """
    batch = integer(batch, "batch", high=plan.batch - 1)
    head = integer(head, "head", high=plan.heads - 1)
    window = _window(plan, q, k)
    axes = axes_or_new(ax, (7.2, 7.0))
    near = paint(axes, plan, int(plan.pattern_id[batch, head]), window)
    _hatch_padding(axes, plan, window)
    label_tokens(axes, plan, window)
    places, note = places_of(plan.provenance, plan.geometry)
    if places is not None:
        _label_places(axes, plan, window, places)
    which = f"head {head}" if plan.batch == 1 else f"batch {batch}, head {head}"
    density = plan.stats().head_pairs[batch, head].item() / max(plan.seqlen_q * plan.seqlen_k, 1)
    lines = [str(plan.geometry), f"{which} of {plan.heads}: {density:.2%} of the pairs kept"]
    if note:
        lines.append(fill(literal(note), 78))
    axes.set_title("\n".join(lines), fontsize=10)
    colours = {**LEGEND, "not kept in a partial block": DROPPED} if near else LEGEND
    add_legend(axes, colours, below=ax is None)
    return axes


def literal(text: str) -> str:
    """Text of a file as matplotlib shows it: a dollar sign would start a formula."""
    return text.replace("$", r"\$")


def paint(
    axes: "Axes", plan: BlockLists, pattern: int, window: Window, *, pixels: int = RESOLUTION
) -> bool:
    """Draw a pattern into `axes`, in tokens, of at most `pixels` pixels a side.

    Returns:
        Whether every token has pixels of its own, and partial blocks are drawn pair by pair.
    """
    (top, bottom), (left, right) = window
    sizes = bottom - top, right - left
    near = min(sizes) > 0 and max(sizes) <= pixels
    if near:
        height, width = (size * (pixels // size) for size in sizes)
    else:
        height, width = (resolution(n, pixels) for n in (plan.axes.rows, plan.axes.cols))
    raster = rasterise(plan, pattern, shape=(height, width), window=window)
    image = coloured(raster)
    if near:
        kept = kept_in_mask_blocks(plan, pattern, window)
        kept = kept.repeat(height // sizes[0], axis=0).repeat(width // sizes[1], axis=1)
        image[(raster.mask > 0) & ~kept] = DROPPED
    extent = (left, max(right, left + 1), max(bottom, top + 1), top)
    tall = (extent[2] - extent[3]) / (extent[1] - extent[0])
    axes.imshow(image, extent=extent, interpolation="nearest")
    axes.set_aspect("equal" if 0.4 < tall < 2.5 else "auto")
    return near


def _window(plan: BlockLists, q: Range | None, k: Range | None) -> Window:
    """Rows and columns to draw, in tokens."""
    rows, cols = whole_window(plan.axes)
    lengths = (plan.seqlen_q, plan.seqlen_k)
    chosen = [
        _range(part, name, length) for part, name, length in zip((q, k), "qk", lengths, strict=True)
    ]
    down, across = chosen if isinstance(plan, Plan) else chosen[::-1]
    return down or rows, across or cols


def _range(part: Range | None, name: str, length: int) -> Range | None:
    if part is None:
        return None
    if not isinstance(part, (tuple, list)) or len(part) != 2:
        raise PlanTypeError(
            sentence(
                what="range is not a pair",
                where=name,
                got=repr(part),
                wanted="(first token, one past the last)",
                remedy=f"pass {name}=(0, {length}), say",
            )
        )
    first = integer(part[0], f"{name}[0]", high=length)
    stop = integer(part[1], f"{name}[1]", high=length)
    if first >= stop:
        raise PlanError(
            sentence(
                what="range is empty",
                where=name,
                got=(first, stop),
                wanted="first < stop",
                remedy=f"pass {name}=(0, {length}), say",
            )
        )
    return first, stop


def _hatch_padding(axes: "Axes", plan: BlockLists, window: Window) -> None:
    """Stripes over what lies past the last row and column, for those who see no grey."""
    from matplotlib.patches import Rectangle

    (top, bottom), (left, right) = window
    rows, cols = plan.axes.row_len, plan.axes.col_len
    style: dict[str, Any] = {"fill": False, "hatch": "////", "edgecolor": "#707070", "linewidth": 0}
    if rows < bottom:
        axes.add_patch(Rectangle((left, rows), right - left, bottom - rows, **style))
    if cols < right:
        axes.add_patch(Rectangle((cols, top), right - cols, min(rows, bottom) - top, **style))


def label_tokens(axes: "Axes", plan: BlockLists, window: Window) -> None:
    """Ticks in tokens on the left and at the bottom."""
    names = ("query", "key") if isinstance(plan, Plan) else ("key", "query")
    sides: tuple[tuple[Any, Any], ...] = (
        (axes.set_yticks, axes.set_ylabel),
        (axes.set_xticks, axes.set_xlabel),
    )
    for part, name, (place, label) in zip(window, names, sides, strict=True):
        at = _ticks(part)
        place(at, [f"{tick:,}" for tick in at], fontsize=8)
        label(f"{name} (token)", fontsize=9)


def _ticks(part: Range) -> list[int]:
    """Round numbers of tokens in a range."""
    first, stop = part
    raw = max(stop - first, 1) / _TICKS
    unit = 10 ** int(np.floor(np.log10(raw))) if raw >= 1 else 1
    step = next((unit * times for times in (1, 2, 5, 10) if unit * times >= raw), unit)
    return list(range(-(-first // step) * step, stop, step))


def _label_places(axes: "Axes", plan: BlockLists, window: Window, places: Places) -> None:
    """The far sides in frames, or in (t, h, w) where a frame is no stretch of the sequence."""
    starts = (places.query_start, 0) if isinstance(plan, Plan) else (0, places.query_start)
    lengths = (plan.axes.row_len, plan.axes.col_len)
    right, top = axes.secondary_yaxis("right"), axes.secondary_xaxis("top")
    tilted = {} if places.in_frames else {"rotation": 30, "ha": "left"}
    sides: tuple[tuple[Any, Any, dict[str, Any]], ...] = (
        (right.set_yticks, right.set_ylabel, {}),
        (top.set_xticks, top.set_xlabel, tilted),
    )
    by_axis = zip(window, starts, lengths, sides, strict=True)
    for part, start, length, (place, label, style) in by_axis:
        shown = (part[0], min(part[1], length))
        at = _frames(shown, start, places) if places.in_frames else _ticks(shown)
        names = [_place_name(tick + start, places) for tick in at]
        place(at, names, fontsize=7, **style)
        label("latent frame" if places.in_frames else "latent (t, h, w)", fontsize=9)


def _frames(part: Range, start: int, places: Places) -> list[int]:
    """Where frames begin, and the text, thinned to what can be read."""
    grid = places.grid
    begins = grid.video_start - start + np.arange(grid.t) * grid.frame_tokens
    shown = begins[(begins >= part[0]) & (begins < part[1])]
    kept: list[int] = shown[:: -(-len(shown) // _FRAME_TICKS) or 1].tolist()
    text = grid.text_start - start
    return kept + [text] * (grid.text > 0 and part[0] <= text < part[1])


def _place_name(slot: int, places: Places) -> str:
    name = places.name(slot)
    if not places.in_frames:
        return name
    return "text" if name.startswith("text") else name[1:].partition(",")[0]
