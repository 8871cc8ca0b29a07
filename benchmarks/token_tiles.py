"""Bytes and time of token tiles for the scenario of video production, on a CPU.

SQ = SK / 64 queries, topk = SK / 8 keys each, 128 heads packed into the rows of a tile: 128 rows
are one query, 256 rows a pair. "Shared" means that pairs of queries have one list. Beside it stands
a table made tile by tile in Python, in both sizes of tile, as a public pull request did: a copy of
the first query's list for each tile, whatever the other query lists and whether the keys come in
whole blocks.

    python benchmarks/token_tiles.py [--lengths 32768,65536] [--loop-up-to 131072] [--runs 3]
"""

import argparse
import time
from collections.abc import Callable

import torch

import maskplan as mp

GROUP, KEYS = 128, 128
LENGTHS = (32_768, 65_536, 131_072, 262_144, 524_288)


def lists_of(seqlen_k: int, share: int, shift: int) -> torch.Tensor:
    """int32 [1, 1, SQ, topk]: blocks of 128 keys in ascending order, shifted by some tokens."""
    queries, blocks = seqlen_k // 64, seqlen_k // KEYS
    generator = torch.Generator().manual_seed(0)
    indices = torch.empty(1, 1, queries, seqlen_k // 8, dtype=torch.int32)
    inner = torch.arange(KEYS, dtype=torch.int32)
    for first in range(0, queries, 512):
        count = min(512, queries - first) // share
        score = torch.rand(count, blocks - 1, generator=generator)
        chosen = score.argsort(-1)[:, : blocks // 8].sort(-1).values.int()
        keys = (chosen[..., None] * KEYS + inner + shift).flatten(1)
        indices[0, 0, first : first + count * share] = keys.repeat_interleave(share, 0)
    return indices


def tables_by_loop(indices: torch.Tensor) -> list[torch.Tensor]:
    """Tables of tiles of 256 and of 128 rows, a tile at a time, from its first query's list."""
    tables = []
    for rows in (256, 128):
        tokens = rows // GROUP
        queries, topk = indices.shape[2:]
        table = torch.full((1, 1, queries // tokens, topk), -1, dtype=torch.int32)
        for tile in range(queries // tokens):
            table[0, 0, tile, :topk] = indices[0, 0, tile * tokens]
        tables.append(table)
    return tables


def seconds(work: Callable[[], object], runs: int) -> float:
    """The shortest wall time: other work on the machine only adds to it."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--loop-up-to", type=int, default=131_072, help="longest SK of the loop")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    print(
        f"{'SK':>7} {'lists':>9} {'rows':>4} {'form':>6} {'bytes':>13} {'of indices':>10} {'s':>7}"
    )
    for seqlen_k in map(int, given.lengths.split(",")):
        for name, share, shift in (("blocks", 1, 0), ("shared", 2, 0), ("shifted", 2, 1)):
            indices = lists_of(seqlen_k, share, shift)
            for rows in (128, 256)[: 1 + (share == 2)]:

                def tiles(rows: int = rows, indices: torch.Tensor = indices) -> mp.TokenTiles:
                    return mp.TokenTiles.from_topk(indices, seqlen_k, group=GROUP, tile_rows=rows)  # noqa: B023 - called at once

                made = tiles()
                share_of = made.nbytes / (indices.numel() * 4)
                print(
                    f"{seqlen_k:>7} {name:>9} {rows:>4} {made.form:>6} {made.nbytes:>13,} "
                    f"{share_of:>10.4f} {seconds(tiles, given.runs):>7.3f}",
                    flush=True,
                )
            if name == "shared":
                size = sum(seqlen_k // 64 // (rows // GROUP) * (seqlen_k // 8) * 4
                           for rows in (256, 128))  # fmt: skip
                loops = seqlen_k // 64 * 3 // 2
                took = "-"
                if seqlen_k <= given.loop_up_to:
                    took = f"{seconds(lambda: tables_by_loop(indices), given.runs):.3f}"  # noqa: B023
                print(f"{seqlen_k:>7} {'tables by loop, ' + str(loops) + ' tiles':>28} "
                      f"{size:>7,} {took:>18}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
