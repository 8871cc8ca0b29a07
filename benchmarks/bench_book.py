"""What a book costs: read from a mask strategy, kept, read back, and asked for a layer.

The strategy is the one given, of the shape of FastVideo's for HunyuanVideo (50 steps, 60 layers, 24
heads), or one like it that is made here. Medians of 5 runs after one warm-up; the peer of a layer's
plan is planning its heads again.
"""

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import maskplan as mp
from maskplan.interop import fastvideo

RUNS = 5
STEPS, LAYERS, HEADS = 50, 60, 24
WINDOWS = [(5, 6, 10), (5, 3, 3), (1, 6, 10), (3, 3, 5), (5, 1, 10), (5, 6, 1)]
MODEL = {
    "canvas": (30, 48, 80),
    "tile": (6, 8, 8),
    "steps": STEPS,
    "layers": LAYERS,
    "heads": HEADS,
}


def median(work: Callable[[], object]) -> float:
    """Median seconds of `work`."""
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def strategy_like_hunyuan() -> dict[str, list[int]]:
    """Dense for 15 steps, then the other windows in turn."""
    return {
        f"{t}_{layer}_{h}": list(WINDOWS[0] if t < 15 else WINDOWS[1 + (layer + h) % 5])
        for t in range(STEPS)
        for layer in range(LAYERS)
        for h in range(HEADS)
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategy", type=Path, help="a mask strategy of HunyuanVideo's shape")
    given = parser.parse_args().strategy
    with tempfile.TemporaryDirectory() as folder:
        path = given or Path(folder) / "strategy.json.gz"
        if given is None:
            path.write_bytes(gzip.compress(json.dumps(strategy_like_hunyuan()).encode()))
        for block in (128, 384):
            report(path, Path(folder) / "run.book", (block, block))


def report(strategy: Path, path: Path, block_size: tuple[int, int]) -> None:
    """One line a figure."""

    def read() -> mp.PlanBook:
        return fastvideo.read_mask_strategy(strategy, **MODEL, block_size=block_size)

    book = read()
    book.save(path)
    layer = book.plan(20, 3)

    def again() -> list[mp.Plan]:
        grid = mp.video.Grid(30, 48, 80)
        windows = [book[20, 3, head].provenance.parameters["window"] for head in book.heads]
        return [
            mp.video.sliding_tile(grid, window=tuple(window), block_size=block_size)
            for window in dict.fromkeys(map(tuple, windows))
        ]

    rows = {
        "strategy to book, s": median(read),
        "save, s": median(lambda: book.save(path)),
        "load and check, s": median(lambda: mp.PlanBook.load(path)),
        "plan of one layer, ms": 1e3 * median(lambda: book.plan(20, 3)),
        "planning its windows again, ms": 1e3 * median(again),
        "statistics of the run, ms": 1e3 * median(book.stats),
    }
    print(f"blocks of {block_size[0]}: {len(book)} entries, {book.num_patterns} patterns, density "
          f"{book.density:.4f}, file {path.stat().st_size / 2**10:.0f} KiB, layer of "
          f"{layer.num_patterns} patterns")  # fmt: skip
    for name, value in rows.items():
        print(f"  {name:<32} {value:8.3f}")


if __name__ == "__main__":
    main()
