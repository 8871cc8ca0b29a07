"""The heads of a plan side by side."""

from typing import TYPE_CHECKING

from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.plan import BlockLists
from maskplan.quality import PlanQuality
from maskplan.viz.canvas import panels, swatches
from maskplan.viz.matrix import paint
from maskplan.viz.palette import LEGEND
from maskplan.viz.raster import whole_window

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def gallery(
    plan: BlockLists, *, quality: PlanQuality | None = None, columns: int = 8, limit: int = 64
) -> "Figure":
    """Draw every head small, each with its density and, if known, its quality.

    Args:
        plan: a Plan or a TransposedPlan.
        quality: what `maskplan.quality` says of this plan, for captions.
        columns: panels in a row.
        limit: most heads drawn; the title says how many there are.

    Returns:
        The figure.

    Raises:
        UnsupportedError: if matplotlib is not installed.
        PlanTypeError: if a number is not an integer.
        PlanError: if one is out of range, or `quality` is of other heads.
    """
    columns = integer(columns, "columns", low=1)
    limit = integer(limit, "limit", low=1)
    shape = (plan.batch, plan.heads)
    if quality is not None and tuple(quality.recall.shape) != shape:
        raise PlanError(
            sentence(
                what="quality is of another plan",
                where="quality",
                got=f"recall of {list(quality.recall.shape)}",
                wanted=f"{list(shape)}, a value for each (batch, head) of the plan",
                remedy="pass plan.with_heads(n) if heads share the plan",
            )
        )
    every = [(b, h) for b in range(plan.batch) for h in range(plan.heads)]
    shown = every[:limit]
    pairs = plan.stats().head_pairs
    whole = max(plan.seqlen_q * plan.seqlen_k, 1)
    figure, axes = panels(len(shown), columns, 1.6)
    for ax, (b, h) in zip(axes, shown, strict=True):
        window = whole_window(plan.axes)
        paint(ax, plan, int(plan.pattern_id[b, h]), window, pixels=160)
        name = f"head {h}" if plan.batch == 1 else f"({b}, {h})"
        lines = [f"{name}: {pairs[b, h].item() / whole:.1%}"]
        if quality is not None:
            lines.append(f"recall {quality.recall[b, h]:.3f}")
            lines.append(f"error {quality.output_error[b, h]:.3f}")
        ax.set_title("\n".join(lines), fontsize=7.5, pad=3)
    count = f"{len(shown)} of {len(every)} heads" if len(shown) < len(every) else "every head"
    figure.suptitle(f"{plan.geometry}, {count}", fontsize=9.5)
    figure.legend(
        handles=swatches(LEGEND), loc="outside lower center", ncols=4, fontsize=8, frameon=False
    )
    return figure
