"""A plan or a book in a notebook: pictures and figures as plain HTML.

NOTE [Plain HTML]: GitHub and nbviewer drop scripts and most styles from what a notebook shows. So a
card is a table with images inline and attributes that HTML always had; it needs neither.
"""

from html import escape

import numpy as np

from maskplan.book.plan_book import PlanBook
from maskplan.plan import BlockLists, Plan
from maskplan.stats import PlanStats
from maskplan.viz.palette import LEGEND, Image, Rgb, coloured, shaded
from maskplan.viz.places import places_of
from maskplan.viz.png import data_uri
from maskplan.viz.raster import rasterise
from maskplan.viz.text import users

_SIDE = 220  # pixels of a picture
_SHOWN = 4  # patterns drawn


def plan_card(plan: BlockLists) -> str:
    """HTML of a plan: its first distinct patterns, a legend, and what it keeps and costs."""
    figures = plan.stats()
    down, across = ("queries", "keys") if isinstance(plan, Plan) else ("keys", "queries")
    pattern_id = plan.pattern_id.cpu().numpy()
    numbers, first = np.unique(pattern_id, return_index=True)
    order = numbers[np.argsort(first)].tolist()
    whole = max(plan.seqlen_q * plan.seqlen_k, 1)
    cells = []
    for pattern in order[:_SHOWN]:
        share = int(figures.pattern_pairs[pattern]) / whole
        who = users(pattern_id == pattern, plan.batch)
        picture = coloured(rasterise(plan, pattern, shape=_shape(plan)))
        label = f"Mask of {who}: {share:.1%} of the pairs kept"
        cells.append((_image(picture, label), f"{who}: {share:.2%}"))
    more = [f"{len(order) - _SHOWN} more distinct patterns"] if len(order) > _SHOWN else []
    return _card(
        f"{type(plan).__name__}: {plan.geometry}",
        cells,
        [f"{down} down, {across} across", *more],
        _rows_of_plan(plan, figures),
        legend=True,
    )


def book_card(book: PlanBook) -> str:
    """HTML of a book: density by step and layer, and what the whole run keeps and costs."""
    figures = book.stats()
    density = figures.density_map.numpy().T  # layers down, steps across
    scale = max(1, _SIDE // max(density.shape))
    picture = shaded(density).repeat(scale, axis=0).repeat(scale, axis=1)
    saved = figures.dense_forward_flops / figures.forward_flops if figures.pairs else float("inf")
    rows = [
        ("steps", _span(book.steps)),
        ("layers", _span(book.layers)),
        ("heads", _span(book.heads)),
        ("distinct patterns", f"{book.num_patterns:,} of {len(book):,} entries"),
        ("density (tokens)", f"{figures.density:.2%}"),
        ("forward FLOPs, D=128", f"{figures.forward_flops:.3e}, {saved:.2f}x fewer than dense"),
    ]
    if book.provenance is not None:
        rows.append(("made by", str(book.provenance)))
    label = f"Density by step and layer, {figures.density:.1%} overall"
    return _card(
        f"PlanBook: {book.geometry}",
        [(_image(picture, label), "density, pale 0 to dark 1")],
        ["steps across, layers down"],
        rows,
        legend=False,
    )


def _rows_of_plan(plan: BlockLists, figures: PlanStats) -> list[tuple[str, str]]:
    used = len(np.unique(plan.pattern_id.cpu().numpy()))
    rows = [
        ("batch, heads", f"{plan.batch}, {plan.heads} ({used} distinct)"),
        ("density (tokens)", f"{figures.density:.2%}"),
        ("block density", f"{figures.block_density:.2%}"),
        ("full, partial blocks", f"{figures.full_blocks:,}, {figures.mask_blocks:,}"),
        ("visited / kept pairs", f"{figures.amplification:.3f}"),
        ("largest / mean row", f"{figures.row_imbalance:.2f}"),
        ("forward FLOPs, D=128", f"{figures.forward_flops:.3e}"),
        ("plan's arrays", f"{figures.bytes:,} bytes"),
    ]
    origin = plan.provenance
    if origin is not None:
        rows.append(("made by", str(origin)))
    places, note = places_of(origin, plan.geometry)
    if places is not None:
        grid = places.grid
        text = f", {grid.text} text tokens" if grid.text else ""
        rows.append(("latent grid", f"{grid.t} x {grid.h} x {grid.w}{text}"))
    if note:
        rows.append(("note", note))
    return rows


def _shape(plan: BlockLists) -> tuple[int, int]:
    """Height and width of a picture: whole pixels a block where there are enough."""
    axes = plan.axes
    if axes.row_block == axes.col_block and min(axes.rows, axes.cols) > 0:
        each = _SIDE // max(axes.rows, axes.cols)
        if each:
            return axes.rows * each, axes.cols * each
    rows, cols = max(axes.row_len, 1), max(axes.col_len, 1)
    longest = max(rows, cols)
    return max(40, _SIDE * rows // longest), max(40, _SIDE * cols // longest)


def _image(image: Image, label: str) -> str:
    height, width, _ = image.shape
    source, text = data_uri(image), escape(label, quote=True)
    return f'<img src="{source}" width="{width}" height="{height}" alt="{text}">'


def _swatch(name: str, colour: Rgb) -> str:
    square = np.full((11, 11, 3), colour, dtype=np.uint8)
    square[[0, -1]] = square[:, [0, -1]] = 110
    return f"{_image(square, '')}&nbsp;{escape(name)}"


def _card(
    title: str,
    cells: list[tuple[str, str]],
    remarks: list[str],
    rows: list[tuple[str, str]],
    *,
    legend: bool,
) -> str:
    """A title, pictures with captions, remarks, and a table of figures; text is escaped here."""
    pictures = "".join(
        f'<td align="left" valign="top">{image}<br><small>{escape(caption)}</small></td>'
        for image, caption in cells
    )
    swatches = "&emsp;".join(_swatch(name, colour) for name, colour in LEGEND.items())
    remark = escape("; ".join(remarks)) + (f"<br>{swatches}" if legend else "")
    table = "".join(
        f'<tr><th align="left" scope="row">{escape(name)}</th>'
        f'<td align="left">{escape(_short(value))}</td></tr>'
        for name, value in rows
    )
    return (
        f"<div><b>{escape(title)}</b>"
        f'<table role="presentation"><tr>{pictures}</tr></table>'
        f"<p><small>{remark}</small></p>"
        f"<table>{table}</table></div>"
    )


def _span(numbers: range) -> str:
    return f"{len(numbers)} ({numbers.start} to {numbers.stop - 1})"


def _short(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[:limit] + " ..."
