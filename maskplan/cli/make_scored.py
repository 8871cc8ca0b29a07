"""`maskplan plan`, patterns that scores of tiles, blocks or clusters decide."""

from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor

import maskplan as mp
from maskplan.cli.arrays import read_array
from maskplan.cli.grid import FreeRows, Pad
from maskplan.cli.operands import Channels, Heads, KeyFile, QueryFile, Seed, Source, Synthetic
from maskplan.cli.options import triple
from maskplan.cli.pattern import pattern
from maskplan.cli.progress import working
from maskplan.cli.synthetic import places
from maskplan.errors import PlanError, sentence
from maskplan.video import Grid

SCORED = "Video, from queries and keys"

Sparsity = Annotated[float, typer.Option(help="Share to leave out.", show_default=False)]


@pattern(
    SCORED,
    "maskplan plan vsa wan2.1-480p --sparsity 0.9 --synthetic smooth -o vsa.plan",
    block_size="64,64",
)
def vsa(
    *,
    grid: Grid,
    sparsity: Annotated[float | None, typer.Option(help="Share of tiles to leave out.")] = None,
    selected: Annotated[
        Path | None,
        typer.Option(
            help="Or the choice: .npy of integers \\[batch, heads, tiles, topk], -1 none."
        ),
    ] = None,
    q: QueryFile = None,
    k: KeyFile = None,
    synthetic: Synthetic = None,
    heads: Heads = 1,
    head_dim: Channels = 64,
    seed: Seed = 0,
    tile: Annotated[str, typer.Option(help="Tokens of a tile on each axis.")] = "4,4,4",
    pad: Pad = False,
    free_rows: FreeRows = False,
    text_tile: Annotated[
        int | None, typer.Option(help="Text competes in tiles of this many tokens.")
    ] = None,
    queries: str,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Video sparse attention (VSA): each tile sees the tiles of best pooled score. Tile order.

    Scores are means of the queries of a tile by means of the keys. q and k are
    in raster order.
    Source: arXiv 2505.13389, FastVideo.
    """
    sides = triple(tile, "--tile")
    if selected is not None:
        _alone("--selected", q, k, synthetic, sparsity)
        choice = read_array(selected, "iu", 4)
    else:
        source = _source(q, k, synthetic, (heads, head_dim, seed), "--selected")
        count = mp.video.vsa_topk(grid, _given(sparsity, "--sparsity"), tile=sides)
        with working("scoring tiles"):
            scores = _tile_scores(grid, sides, source)
            choice = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
        print(f"tiles chosen by {source.said}")
    return mp.video.vsa(
        grid,
        choice,
        tile=sides,
        pad=pad,
        free_rows=free_rows,
        text_tile=text_tile,
        queries=queries,
        block_size=block_size,
    )


@pattern(SCORED, "maskplan plan draft 4,48,80 --sparsity 0.75 --synthetic smooth -o draft.plan")
def draft(
    *,
    grid: Grid,
    sparsity: Annotated[
        float | None, typer.Option(help="Share of pairs of regions to leave out.")
    ] = None,
    kept: Annotated[
        Path | None,
        typer.Option(help="Or the choice: .npy of bools \\[batch, heads, regions, regions]."),
    ] = None,
    q: QueryFile = None,
    k: KeyFile = None,
    synthetic: Synthetic = None,
    heads: Heads = 1,
    head_dim: Channels = 64,
    seed: Seed = 0,
    tile: Annotated[str, typer.Option(help="Tokens of a region on each axis.")] = "1,8,16",
    pad: Pad = False,
    free_rows: FreeRows = False,
    queries: str,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Draft attention: regions of a frame see the regions of best pooled score. Strips order.

    Source: arXiv 2505.14708.
    """
    sides = triple(tile, "--tile")
    if kept is not None:
        _alone("--kept", q, k, synthetic, sparsity)
        choice = read_array(kept, "b", 4)
    else:
        source = _source(q, k, synthetic, (heads, head_dim, seed), "--kept")
        share = _given(sparsity, "--sparsity")
        with working("scoring regions"):
            choice = mp.video.draft_kept(_tile_scores(grid, sides, source).softmax(-1), share)
        print(f"regions chosen by {source.said}")
    return mp.video.draft(
        grid,
        choice,
        tile=sides,
        pad=pad,
        free_rows=free_rows,
        queries=queries,
        block_size=block_size,
    )


@pattern(
    SCORED, "maskplan plan svg2 --q-labels ql.npy --k-labels kl.npy --kept kept.npy -o svg2.plan"
)
def svg2(
    *,
    q_labels: Annotated[
        Path, typer.Option(help="Cluster of each query: .npy of integers \\[batch, heads, tokens].")
    ],
    k_labels: Annotated[Path, typer.Option(help="Cluster of each key, likewise.")],
    kept: Annotated[
        Path, typer.Option(help="Which cluster sees which: .npy of bools \\[batch, heads, Q, K].")
    ],
    multiple: Annotated[int, typer.Option(help="Fill clusters up to this many slots.")] = 1,
    text: Annotated[int, typer.Option(help="Text tokens, which have no labels.")] = 0,
    text_first: Annotated[bool, typer.Option("--text-first", help="Text before video.")] = False,
    free_rows: Annotated[
        bool,
        typer.Option(
            "--free-rows",
            help="With --multiple: slots without a token see what their cluster sees.",
        ),
    ] = False,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Sparse VideoGen 2 (SVG2): clusters of queries see clusters of keys. Each head's own order.

    Clusters come from k-means over q and over k, which is the model's work.
    Source: arXiv 2505.18875.
    """
    choice = read_array(kept, "b", 4)
    q_order, k_order = (
        mp.video.LabelOrder(
            labels=read_array(path, "iu", 3),
            clusters=clusters,
            text=text,
            text_first=text_first,
            multiple=multiple,
        )
        for path, clusters in ((q_labels, choice.shape[2]), (k_labels, choice.shape[3]))
    )
    return mp.video.svg2(q_order, k_order, choice, block_size=block_size, free_rows=free_rows)


def _tile_scores(grid: Grid, tile: tuple[int, int, int], source: Source) -> Tensor:
    """Scores of pooled tiles of the video, float32 [batch, heads, tiles, tiles]."""
    where = places(grid.shape, text=grid.text, text_first=grid.text_first)
    first = grid.video_start
    q, k = (side[:, first : first + grid.video_tokens] for side in source.read(where, where))
    order = mp.video.TokenOrder.tiles(Grid(*grid.shape), tile, pad=True)
    q, k = order.apply(q, 1), order.apply(k, 1)
    side = tile[0] * tile[1] * tile[2]
    sizes = order.tile_counts
    return mp.select.pooled_scores(q, k, (side, side), q_sizes=sizes, k_sizes=sizes)


def _source(
    q: Path | None, k: Path | None, synthetic: str | None, sizes: tuple[int, int, int], other: str
) -> Source:
    heads, head_dim, seed = sizes
    source = Source(q=q, k=k, synthetic=synthetic, heads=heads, head_dim=head_dim, seed=seed)
    source.check(other)
    return source


def _given(share: float | None, option: str) -> float:
    if share is None:
        _refuse("share is not given", option, "nothing", "a number from 0 to 1", f"pass {option}")
    assert share is not None, "checked"
    return share


def _alone(option: str, *others: object) -> None:
    if any(other is not None for other in others):
        got = f"{option} and options of scoring"
        _refuse("choice is given twice", option, got, "one of the two", "leave the others out")


def _refuse(what: str, where: str, got: str, wanted: str, remedy: str) -> None:
    raise PlanError(sentence(what=what, where=where, got=got, wanted=wanted, remedy=remedy))
