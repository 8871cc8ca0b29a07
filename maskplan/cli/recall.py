"""`maskplan recall`: how much attention a plan keeps, and what error it causes."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

import maskplan as mp
from maskplan.cli.operands import (
    Channels,
    Heads,
    KeyFile,
    QueryFile,
    Seed,
    Source,
    Synthetic,
    ValueFile,
    values,
)
from maskplan.cli.options import Force, PlanFile
from maskplan.cli.output import free
from maskplan.cli.pictures import save_gallery
from maskplan.cli.plain import plain
from maskplan.cli.progress import working
from maskplan.cli.source import load_plan
from maskplan.cli.synthetic import places
from maskplan.errors import PlanError, sentence
from maskplan.plan import Plan
from maskplan.viz.places import Places, places_of


def recall(
    plan: PlanFile,
    q: QueryFile = None,
    k: KeyFile = None,
    v: ValueFile = None,
    order: Annotated[
        str | None,
        typer.Option(
            help="Order of tokens in the files: raster (as the model has them), or plan.",
            show_default=False,
        ),
    ] = None,
    synthetic: Synthetic = None,
    heads: Heads = 1,
    head_dim: Channels = 64,
    seed: Seed = 0,
    q_blocks: Annotated[
        int | None,
        typer.Option(help="Look at so many Q blocks, spread evenly; all where not given."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Draw all heads with what each keeps: .png, .svg, .pdf."),
    ] = None,
    force: Force = False,
) -> None:
    """Measure the share of attention mass that a plan keeps, and the error of the output.

    On a model's own q, k (and v), or on made-up ones: "smooth" is the case that
    local patterns are made for, "random" the worst case of any. Neither says
    how a model does.
    """
    if out is not None:
        free(out, force=force)
    source = Source(q=q, k=k, synthetic=synthetic, heads=heads, head_dim=head_dim, seed=seed)
    source.check()
    if synthetic is not None and (v is not None or order is not None):
        got = "--synthetic with " + ("--v" if v is not None else "--order")
        _refuse("option is for files", got, "--q and --k", "leave it out")
    loaded = load_plan(plan)
    found, why_not = places_of(loaded.provenance, loaded.geometry)
    _refuse_padding(loaded, found)
    queries, keys, worth = (
        _made(loaded, found, source)
        if synthetic is not None
        else _given(loaded, found, source, v, order)
    )
    chosen = _spread(loaded, q_blocks)
    count = loaded.geometry.num_q_blocks if chosen is None else len(chosen)
    with working(f"attention of {count} of {loaded.geometry.num_q_blocks} Q blocks, twice"):
        quality = mp.quality(queries, keys, worth, loaded, q_blocks=chosen)
    where = "" if found is not None else "; places in one line, as no latent grid is known"
    said = source.said + (where if synthetic == "smooth" else "")
    value = f"v of {v}" if v is not None else "v noise"
    print(f"{said}; {value}\n{loaded.geometry}, density {loaded.density:.4%}\n\n{quality}")
    if why_not:
        print(plain(why_not))
    if out is not None:
        one_of_many = (loaded.batch, loaded.heads) == (1, 1)
        shown = loaded.with_heads(quality.recall.shape[1]) if one_of_many else loaded
        save_gallery(out, shown, quality)


def _made(plan: Plan, found: Places | None, source: Source) -> tuple[Tensor, Tensor, Tensor]:
    """Made-up (q, k, v) in the plan's order."""
    if found is None:
        q, k = source.read(places((plan.seqlen_q,)), places((plan.seqlen_k,)))
    else:
        grid = found.grid
        where = places(grid.shape, text=grid.text, text_first=grid.text_first)
        whole_q, whole_k = source.read(where, where)
        q, k = _taken(whole_q, found, plan.seqlen_q), _ordered(whole_k, found)
    return q, k, values(None, k, source.seed)


def _given(
    plan: Plan, found: Places | None, source: Source, v: Path | None, order: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(q, k, v) of files in the plan's order."""
    moved = found is not None and not found.in_frames
    if order not in (None, "raster", "plan") or (order is None and moved):
        got = "a plan in another order than raster" if order is None else repr(order)
        remedy = "pass --order raster for tensors as the model has them"
        _refuse("order of tokens in the files is not known", got, "raster or plan", remedy)
    if order == "raster" and found is None:
        remedy = "pass --order plan, with tokens in the order of the plan"
        _refuse("plan names no latent grid", "--order raster", "a plan on a grid", remedy)
    if found is None or order != "raster":  # in raster order nothing has to move
        q, k = source.read(torch.empty(plan.seqlen_q, 1), torch.empty(plan.seqlen_k, 1))
        return q, k, values(v, k, source.seed)
    token_places = torch.empty(found.grid.seqlen, 1)
    cross = plan.seqlen_q != plan.seqlen_k
    video = torch.empty(found.grid.video_tokens, 1)
    q, k = source.read(video if cross else token_places, token_places)
    if cross:  # text is no query: files hold the video's queries alone
        start = found.grid.video_start
        padded = torch.zeros((q.shape[0], found.grid.seqlen, *q.shape[2:]))
        padded[:, start : start + found.grid.video_tokens] = q
        q = padded
    worth = values(v, k, source.seed)
    return _taken(q, found, plan.seqlen_q), _ordered(k, found), _ordered(worth, found)


def _ordered(x: Tensor, found: Places) -> Tensor:
    """Tokens in raster order put into the plan's; slots that hold none are 0."""
    slots = torch.from_numpy(found.slots)
    taken = x[:, slots.clamp(min=0)]
    taken[:, slots < 0] = 0
    return taken


def _taken(x: Tensor, found: Places, length: int) -> Tensor:
    """The queries among the tokens, in the plan's order."""
    return _ordered(x, found)[:, found.query_start : found.query_start + length]


def _refuse_padding(plan: Plan, found: Places | None) -> None:
    """Slots without a token would count as queries that lose everything, and as keys."""
    if found is not None and (found.slots < 0).any():
        raise PlanError(
            sentence(
                what="plan has slots that hold no token",
                where="recall",
                got=f"{int((found.slots < 0).sum())} of {plan.seqlen_k} slots",
                wanted="a plan of tokens alone",
                remedy="measure the plan made without --pad: it keeps the same pairs",
            )
        )


def _refuse(what: str, got: str, wanted: str, remedy: str) -> None:
    raise PlanError(sentence(what=what, where="the options", got=got, wanted=wanted, remedy=remedy))


def _spread(plan: Plan, count: int | None) -> list[int] | None:
    """Numbers of Q blocks to look at; None is all."""
    blocks = plan.geometry.num_q_blocks
    if count is None:
        return None
    if not 1 <= count <= blocks:
        raise PlanError(
            sentence(
                what="number of Q blocks out of range",
                where="--q-blocks",
                got=count,
                wanted=f"1 to {blocks}",
                remedy="leave it out to look at all",
            )
        )
    return [number * blocks // count for number in range(count)]
