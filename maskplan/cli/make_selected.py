"""`maskplan plan`, patterns that arrays decide: choices, masks, scores of blocks."""

from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor

import maskplan as mp
from maskplan.cli.arrays import read_array
from maskplan.cli.pattern import pattern

ARRAYS = "From arrays"

QueryLength = Annotated[int, typer.Option("--seqlen-q", help="Queries.", show_default=False)]
KeyLength = Annotated[int, typer.Option("--seqlen-k", help="Keys.", show_default=False)]
Scores = Annotated[
    Path, typer.Argument(help="An .npy of floats \\[batch, heads, Q blocks, KV blocks].")
]
Nan = Annotated[str, typer.Option(help="A NaN is an error, or to drop.")]
Empty = Annotated[str, typer.Option(help="Rows without a block: error, or allow.")]


@pattern(ARRAYS, "maskplan plan topk topk.npy --seqlen-k 4096 -o topk.plan")
def topk(
    *,
    array: Annotated[
        Path, typer.Argument(help="An .npy of integers \\[batch, heads, SQ, topk], -1 padded.")
    ],
    seqlen_k: KeyLength,
    block_size: tuple[int, int],
) -> mp.Plan:
    """The keys that an array of token indices selects for each query."""
    indices = read_array(array, "iu", 4)
    return mp.from_topk(indices, seqlen_k, block_size=block_size)


@pattern(
    ARRAYS, "maskplan plan block-mask blocks.npy --seqlen-q 4096 --seqlen-k 4096 -o blocks.plan"
)
def block_mask(
    *,
    array: Annotated[Path, typer.Argument(help="An .npy of bools [.., Q blocks, KV blocks].")],
    seqlen_q: QueryLength,
    seqlen_k: KeyLength,
    block_size: tuple[int, int],
) -> mp.Plan:
    """The blocks that an array of bools keeps, each of them whole."""
    mask = read_array(array, "b", None)
    return mp.from_block_mask(mask, seqlen_q, seqlen_k, block_size=block_size)


@pattern(
    ARRAYS,
    "maskplan plan best-blocks scores.npy --k 8 --seqlen-q 4096 --seqlen-k 4096 -o best.plan",
)
def best_blocks(
    *,
    array: Scores,
    seqlen_q: QueryLength,
    seqlen_k: KeyLength,
    k: Annotated[int, typer.Option("--k", help="Blocks of each row.", show_default=False)],
    nan: Nan = "error",
    empty: Empty = "error",
    block_size: tuple[int, int],
) -> mp.Plan:
    """The k blocks of best score in each row, or all where there are fewer."""
    return mp.select.top_k(
        _scores(array), k, seqlen_q, seqlen_k, block_size=block_size, nan=nan, empty=empty
    )


@pattern(
    ARRAYS,
    "maskplan plan mass mass.npy --p 0.9 --rule svg2 --seqlen-q 4096 --seqlen-k 4096 -o mass.plan",
)
def mass(
    *,
    array: Scores,
    seqlen_q: QueryLength,
    seqlen_k: KeyLength,
    p: Annotated[float, typer.Option("--p", help="Share of a row's mass.", show_default=False)],
    rule: Annotated[
        str, typer.Option(help="sparge, xattention or svg2: who keeps what.", show_default=False)
    ],
    at_least: Annotated[int, typer.Option(help="Blocks kept in any case.")] = 1,
    nan: Nan = "error",
    empty: Empty = "error",
    block_size: tuple[int, int],
) -> mp.Plan:
    """The best blocks that make a share p of each row's mass (top-p, cdf).

    The block that crosses the share is left out by sparge, and kept by
    xattention and svg2.
    Source: SpargeAttn (arXiv 2502.18137), XAttention (2503.16428),
    SVG2 (2505.18875).
    """
    return mp.select.top_p(
        _scores(array),
        p,
        seqlen_q,
        seqlen_k,
        rule=rule,
        at_least=at_least,
        nan=nan,
        empty=empty,
        block_size=block_size,
    )


@pattern(
    ARRAYS,
    "maskplan plan threshold scores.npy --bar 0.5 --strict --seqlen-q 4096 "
    "--seqlen-k 4096 --empty allow -o bar.plan",
)
def threshold(
    *,
    array: Scores,
    seqlen_q: QueryLength,
    seqlen_k: KeyLength,
    bar: Annotated[float, typer.Option(help="The bar.", show_default=False)],
    strict: Annotated[
        bool, typer.Option("--strict/--reach", help="Above it, or at it too.", show_default=False)
    ],
    nan: Nan = "error",
    empty: Empty = "error",
    block_size: tuple[int, int],
) -> mp.Plan:
    """The blocks whose score exceeds a bar, or reaches it."""
    return mp.select.threshold(
        _scores(array),
        bar,
        seqlen_q,
        seqlen_k,
        strict=strict,
        nan=nan,
        empty=empty,
        block_size=block_size,
    )


@pattern(ARRAYS, "maskplan plan moba chunks.npy --k 3 --chunk 512 -o moba.plan")
def moba(
    *,
    array: Annotated[
        Path, typer.Argument(help="An .npy of floats \\[batch, heads, S, chunks]: q by mean keys.")
    ],
    k: Annotated[int, typer.Option("--k", help="Chunks of each query.", show_default=False)],
    chunk: Annotated[int, typer.Option(help="Keys of a chunk.", show_default=False)],
    nan: Nan = "error",
    block_size: tuple[int, int],
) -> mp.Plan:
    """MoBA: each query sees its own chunk, up to itself, and the best of those before.

    Source: arXiv 2502.13189.
    """
    return mp.select.moba(_scores(array), k, chunk=chunk, nan=nan, block_size=block_size)


@pattern(
    ARRAYS,
    "maskplan plan vertical-slash columns.npy diagonals.npy --seqlen 4096 "
    "--lines exact -o lines.plan",
    block_size="64,64",
)
def vertical_slash(
    *,
    vertical: Annotated[
        Path, typer.Argument(help="Columns: .npy of integers \\[batch, heads, V].")
    ],
    slash: Annotated[Path, typer.Argument(help="Diagonals q - k: .npy \\[batch, heads, S].")],
    seqlen: Annotated[int, typer.Option(help="Queries and keys.", show_default=False)],
    lines: Annotated[
        str, typer.Option(help="exact: one pair wide; blocks: whole stretches.", show_default=False)
    ],
    block_size: tuple[int, int],
) -> mp.Plan:
    """Vertical and slash lines of a causal mask.

    Source: MInference (arXiv 2407.02490).
    """
    columns, diagonals = read_array(vertical, "iu", 3), read_array(slash, "iu", 3)
    return mp.select.vertical_slash(columns, diagonals, seqlen, lines=lines, block_size=block_size)


def _scores(path: Path) -> Tensor:
    return read_array(path, "f", 4)
