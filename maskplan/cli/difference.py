"""`maskplan diff`: two plans side by side, pair by pair."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from maskplan.cli.options import Force
from maskplan.cli.output import free
from maskplan.cli.pictures import save_figure
from maskplan.cli.plain import plain
from maskplan.cli.progress import working
from maskplan.cli.source import load_plan
from maskplan.errors import PlanError, sentence
from maskplan.plan import Plan
from maskplan.stats import stats
from maskplan.viz.places import places_of
from maskplan.viz.text import picture


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A plan file.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Draw where they differ: .png, .svg, .pdf.")
    ] = None,
    batch: Annotated[int, typer.Option(help="In the picture: which batch.")] = 0,
    head: Annotated[int, typer.Option(help="In the picture: which head.")] = 0,
    any_order: Annotated[
        bool, typer.Option("--any-order", help="Compare places, whatever tokens they hold.")
    ] = False,
    force: Force = False,
) -> None:
    """Count the pairs that both of two plans keep, and those that only one does.

    Plans need the same lengths. Blocks may differ in size: B is then cut into
    those of A, exactly. One head, or one batch, of a plan stands for all of the
    other's. Plans whose tokens lie in different orders are refused: the same
    place of the sequence holds another token.
    """
    if out is not None:
        free(out, force=force)
    a, b = load_plan(first), load_plan(second)
    print(f"A {first}: {_named(a)}\nB {second}: {_named(b)}")
    if any_order:  # places are compared, and nothing is claimed of the tokens in them
        a, b = (replace(plan, provenance=None) for plan in (a, b))
    else:
        _check_orders(a, b)
    if b.block_size != a.block_size:
        b = b.reblock(a.block_size)
        print(f"B is compared in blocks of {a.block_size[0]} x {a.block_size[1]} tokens")
    with working("comparing"):
        parts = {"both": a & b, "only A": a - b, "only B": b - a}
    counts = {name: stats(part).pairs for name, part in parts.items()}
    either = sum(counts.values())
    print()
    for name, count in counts.items():
        share = count / either if either else 0.0
        print(f"  {name:<7} {count:>16,} pairs  {share:>8.3%} of those that either keeps")
    if not counts["only A"] and not counts["only B"]:
        print("\nA and B keep the same pairs")
    elif out is None:
        print(f"\nwhere they differ\n{picture((a - b) | (b - a), limit=1)}")
    if out is not None:
        with working(f"drawing {out.name}"):
            save_figure(out, lambda: _figure(a, b, batch, head, (first.name, second.name)))
        print(f"\n{out}")


def _figure(a: Plan, b: Plan, batch: int, head: int, names: tuple[str, str]) -> object:
    from maskplan.viz import compare

    return compare(a, b, batch=batch, head=head, names=names).figure


def _check_orders(a: Plan, b: Plan) -> None:
    """Refuse plans that name different tokens in the same places.

    Raises:
        PlanError: if they do.
    """
    found = [places_of(plan.provenance, plan.geometry)[0] for plan in (a, b)]
    one, other = found
    if one is None or other is None or a.geometry.seqlen_k != b.geometry.seqlen_k:
        return  # nothing is known of one, or lengths differ, which is an error of its own
    if one.grid != other.grid or not (one.slots == other.slots).all():
        orders = [plan.provenance.token_order for plan in (a, b) if plan.provenance is not None]
        raise PlanError(
            sentence(
                what="tokens of the plans lie in different orders",
                where="diff",
                got=f"{one.grid} in {_said(orders[0])} and {other.grid} in {_said(orders[1])}",
                wanted="the same order of the same grid",
                remedy="make both in one order, or pass --any-order to compare places",
            )
        )


def _said(order: object) -> str:
    return "raster order" if order is None else f"{order}"


def _named(plan: Plan) -> str:
    made = "" if plan.provenance is None else f", made by {plain(plan.provenance)}"
    return f"{plan.geometry}, heads {plan.heads}, density {plan.density:.4%}{made}"
