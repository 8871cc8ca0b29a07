"""Two plans in one matrix: what both keep, and what only one does."""

from typing import TYPE_CHECKING

import numpy as np

from maskplan.book.pool import gathered
from maskplan.errors import PlanTypeError, sentence
from maskplan.geometry import integer
from maskplan.pairs import kept_pairs
from maskplan.plan import Plan
from maskplan.viz.canvas import add_legend, axes_or_new, resolution
from maskplan.viz.matrix import label_tokens, literal
from maskplan.viz.palette import BOTH, EMPTY, ONLY_A, ONLY_B, mixed
from maskplan.viz.raster import rasterise, whole_window

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def compare(
    a: Plan,
    b: Plan,
    *,
    batch: int = 0,
    head: int = 0,
    names: tuple[str, str] = ("a", "b"),
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw where two plans agree and where they differ, for one head.

    Counted pair by pair and drawn block by block: a block shows every colour of which it has a
    pair.

    Args:
        a: a plan.
        b: a plan of the same lengths and block size.
        batch: which batch; a plan of batch 1 has one for all.
        head: which head; a plan of one head has one for all.
        names: what to call them in the legend.
        ax: matplotlib axes to draw into; a new figure by default.

    Returns:
        The axes.

    Raises:
        UnsupportedError: if matplotlib is not installed.
        PlanTypeError: if one is not a Plan, or a number not an integer.
        PlanError: if their lengths or block sizes differ, or a number is out of range.
    """
    one, other = (_head(plan, batch, head, name) for plan, name in ((a, "a"), (b, "b")))
    parts = {
        "both": (one & other, BOTH),
        f"only {names[0]}": (one - other, ONLY_A),
        f"only {names[1]}": (other - one, ONLY_B),
    }
    axes = axes_or_new(ax, (7.2, 7.0))
    window = whole_window(one.axes)
    shape = resolution(one.axes.rows), resolution(one.axes.cols)
    shares = [(rasterise(part, 0, shape=shape).listed, colour) for part, colour in parts.values()]
    crowd = np.maximum(sum(share for share, _ in shares), 1.0)
    ground = np.full((*shape, 3), EMPTY, dtype=np.float64)
    (top, bottom), (left, right) = window
    axes.imshow(
        mixed([(share / crowd, colour) for share, colour in shares], ground),
        extent=(left, max(right, 1), max(bottom, 1), top),
        interpolation="nearest",
        aspect="equal" if 0.4 < max(bottom, 1) / max(right, 1) < 2.5 else "auto",
    )
    label_tokens(axes, one, window)
    counts = [kept_pairs(part) for part, _ in parts.values()]
    union = sum(counts)
    said = [
        f"{name} {count / union:.1%}" if union else f"{name} 0"
        for name, count in zip(parts, counts, strict=True)
    ]
    axes.set_title(
        literal(f"{a.geometry}, head {head}\nof {union:,} pairs kept by either: {', '.join(said)}"),
        fontsize=10,
    )
    colours = {literal(name): colour for name, (_, colour) in parts.items()}
    add_legend(axes, {**colours, "neither": EMPTY}, below=ax is None)
    return axes


def _head(plan: Plan, batch: int, head: int, name: str) -> Plan:
    """One head of a plan, as a plan."""
    if not isinstance(plan, Plan):
        raise PlanTypeError(
            sentence(
                what="argument is not a Plan",
                where=name,
                got=type(plan).__name__,
                wanted="a forward plan",
                remedy="transpose a TransposedPlan back first",
            )
        )
    batch = 0 if plan.batch == 1 else integer(batch, "batch", high=plan.batch - 1)
    head = 0 if plan.heads == 1 else integer(head, "head", high=plan.heads - 1)
    return gathered(plan, plan.pattern_id[batch : batch + 1, head : head + 1])
