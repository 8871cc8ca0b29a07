"""What each video pattern costs to plan at 115,200 tokens, one head: time and memory.

Grid (30, 48, 80), blocks of 128 x 128 unless the name says otherwise. Milliseconds are medians of
wall time, and of the CPU time of all threads, which other work on the machine moves less. Memory is
the largest resident set during a call less the one before it.
"""

import statistics
import time
from collections.abc import Callable

import torch
from measure import RUNS, growth

from maskplan import Plan, video

GRID = video.Grid(30, 48, 80)
WITH_TEXT = video.Grid(30, 48, 80, 256)


def medians(work: Callable[[], object]) -> tuple[float, float]:
    """Median milliseconds of `work`, of wall time and of all its threads, after one warm-up."""
    work()
    walls, threads = [], []
    for _ in range(RUNS):
        wall, thread = time.perf_counter(), time.process_time()
        work()
        walls.append(1e3 * (time.perf_counter() - wall))
        threads.append(1e3 * (time.process_time() - thread))
    return statistics.median(walls), statistics.median(threads)


def closed_forms() -> dict[str, Callable[[], Plan]]:
    """Patterns that a few numbers say."""
    frames = video.svg_frames(WITH_TEXT, 0.25)
    window = (18, 24, 24)
    return {
        "sliding tile (3, 3, 3)": lambda: video.sliding_tile(GRID),
        "sliding tile, 256 text": lambda: video.sliding_tile(WITH_TEXT),
        "neighborhood 18 x 24 x 24, raster": lambda: video.neighborhood(GRID, kernel=window),
        "neighborhood, raster, 256 text": lambda: video.neighborhood(WITH_TEXT, kernel=window),
        "neighborhood, tiles (2, 8, 8)": lambda: video.neighborhood(
            GRID, kernel=window, tile=(2, 8, 8)
        ),
        "neighborhood, stride (16, 8, 8), tiles": lambda: video.neighborhood(
            GRID, kernel=window, stride=(16, 8, 8), tile=(2, 8, 8)
        ),
        "neighborhood, dilation (1, 2, 3)": lambda: video.neighborhood(
            GRID, kernel=window, dilation=(1, 2, 3)
        ),
        "radial, decay 0.2": lambda: video.radial(GRID, decay=0.2),
        "radial, decay 0.95, 256 text": lambda: video.radial(WITH_TEXT, decay=0.95),
        "radial, shrunk, decay 0.2": lambda: video.radial_shrunk(GRID, decay=0.2),
        "svg spatial, density 0.25": lambda: video.svg(
            WITH_TEXT, head="spatial", model="hunyuan", frames=frames
        ),
        "svg temporal, density 0.25": lambda: video.svg(
            WITH_TEXT, head="temporal", model="hunyuan", frames=frames
        ),
        "block-causal, chunks of 3": lambda: video.block_causal(GRID, chunk=3),
        "block-causal, local 9, sink 1": lambda: video.block_causal(GRID, chunk=3, local=9, sink=1),
        "magi, chunks of 6, reach 4": lambda: video.magi(GRID, reach=4),
        "nested neighborhood": lambda: video.nested_neighborhood(GRID),
    }


def chosen() -> dict[str, Callable[[], Plan]]:
    """Patterns of random choices, a tenth of the tiles or a fifth of the clusters."""
    works: dict[str, Callable[[], Plan]] = {}
    for tile, pad, block in (
        ((4, 4, 4), True, (64, 64)),
        ((4, 4, 4), False, (128, 128)),
        ((4, 8, 8), False, (128, 128)),
    ):
        tiles = len(video.TokenOrder.tiles(GRID, tile).tile_counts)
        topk = video.vsa_topk(GRID, 0.9, tile=tile)
        ids = torch.stack([torch.randperm(tiles)[:topk] for _ in range(tiles)])[None, None]
        layout = "padded" if pad else "compact"
        works[f"vsa {tile}, {layout}, blocks {block}"] = (
            lambda ids=ids, tile=tile, pad=pad, block=block: video.vsa(
                GRID, ids, tile=tile, pad=pad, free_rows=pad, block_size=block
            )
        )
    regions = len(video.TokenOrder.strips(GRID).tile_counts)
    kept = torch.rand(1, 1, regions, regions) < 0.1
    works["draft, regions of 8 x 16"] = lambda: video.draft(GRID, kept)
    clusters = torch.rand(1, 1, 400, 1000) < 0.2
    for multiple in (128, 1):
        q_order, k_order = (
            video.LabelOrder(
                labels=torch.randint(count, (1, 1, GRID.seqlen)), clusters=count, multiple=multiple
            )
            for count in (400, 1000)
        )
        works[f"svg2, clusters in multiples of {multiple}"] = (
            lambda q_order=q_order, k_order=k_order, free=multiple > 1: video.svg2(
                q_order, k_order, clusters, free_rows=free
            )
        )
    return works


def table(title: str, works: dict[str, Callable[[], Plan]]) -> None:
    heads = f"{'ms':>8s} {'CPU ms':>8s} {'MiB':>7s} {'blocks':>9s} {'tiles':>7s}  density"
    print(f"\n{title}\n  {'':44s} {heads}")
    for name, work in works.items():
        (wall, threads), mebibytes, plan = medians(work), growth(work), work()
        print(
            f"  {name:44s} {wall:8.1f} {threads:8.1f} {mebibytes:7.1f} {plan.num_blocks:9d} "
            f"{plan.num_tiles:7d}  {plan.density:.4f}"
        )


def main() -> None:
    """Print the tables."""
    torch.manual_seed(0)
    print(f"threads {torch.get_num_threads()}, grid {GRID.shape}, {GRID.seqlen} tokens, one head")
    table("closed forms", closed_forms())
    table("chosen at random", chosen())


if __name__ == "__main__":
    main()
