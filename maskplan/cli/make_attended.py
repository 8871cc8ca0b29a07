"""`maskplan plan`, patterns of any sequence that its queries and keys decide."""

from pathlib import Path
from typing import Annotated

import typer

import maskplan as mp
from maskplan.cli.attended import compressed_scores, queries_and_keys
from maskplan.cli.pattern import pattern
from maskplan.errors import PlanError, sentence

ATTENDED = "From queries and keys"

QueryArray = Annotated[
    Path, typer.Argument(metavar="Q", help="An .npy of floats \\[batch, S, heads, D].")
]
KeyArray = Annotated[
    Path, typer.Argument(metavar="K", help="Likewise, with as many heads or a divisor of them.")
]
Layout = Annotated[
    str, typer.Option(help="Axes of Q and K: bshd, or bhsd where heads come before tokens.")
]


@pattern(ATTENDED, "maskplan plan xattention q.npy k.npy --p 0.9 --causal -o xattention.plan")
def xattention(
    *,
    q: QueryArray,
    k: KeyArray,
    p: Annotated[
        float, typer.Option("--p", help="Share of a row's mass, 0 to 1.", show_default=False)
    ],
    causal: Annotated[
        bool,
        typer.Option(
            "--causal/--full",
            help="Whether queries see later keys: not, or all.",
            show_default=False,
        ),
    ],
    stride: Annotated[
        int, typer.Option(help="Tokens of a group, whose antidiagonal is summed: 4, 8 or 16.")
    ] = 8,
    block: Annotated[int, typer.Option(help="Tokens of a block, a multiple of the stride.")] = 128,
    norm: Annotated[float, typer.Option(help="Divides the scores.")] = 1.0,
    layout: Layout = "bshd",
) -> mp.Plan:
    """XAttention: the best blocks by antidiagonal sums that make a share p of each row.

    The block that crosses the share is kept. With --causal, block 0 and the
    diagonal are kept in any case, and the sum starts with their mass. With
    --full nothing is (the published code keeps block 0 besides).
    Source: arXiv 2503.16428, mode "inverse".
    """
    queries, keys = queries_and_keys(q, k, layout, equal=causal)
    if not norm > 0:
        _refuse("scores cannot be divided", "--norm", norm, "a number above 0", "leave it at 1")
    mass = mp.select.antidiagonal_mass(
        queries, keys, block=block, stride=stride, causal=causal, norm=norm, layout="bhsd"
    )
    lengths = queries.shape[2], keys.shape[2]
    plan = mp.select.top_p(
        mass,
        p,
        *lengths,
        rule="xattention",
        always=mp.select.sink_and_diagonal(mass.shape[2]) if causal else None,
        block_size=(block, block),
    )
    if causal:
        plan = plan & mp.causal(*lengths, block_size=(block, block))
    return plan


@pattern(ATTENDED, "maskplan plan nsa q.npy k.npy --k 16 -o nsa.plan")
def nsa(
    *,
    q: QueryArray,
    k: KeyArray,
    count: Annotated[
        int,
        typer.Option("--k", help="Blocks of each query, 16 in the paper.", show_default=False),
    ],
    select_block: Annotated[int, typer.Option(help="Keys of a block that is selected.")] = 64,
    length: Annotated[int, typer.Option(help="Keys of a compressed block.")] = 32,
    stride: Annotated[
        int, typer.Option(help="Keys from one compressed block to the next; divides both sizes.")
    ] = 16,
    initial: Annotated[int, typer.Option(help="First blocks, always among the k.")] = 1,
    local: Annotated[int, typer.Option(help="Last blocks up to one's own, always too.")] = 2,
    layout: Layout = "bshd",
    block_size: tuple[int, int],
) -> mp.Plan:
    """NSA, its selected branch: each query sees its k best blocks, up to itself.

    Keys are compressed to the mean of each block: a trained model has learned
    another way. A query gives probabilities to the compressed blocks that end
    at it or before; a block's score is the sum of those of the ones in it,
    over the heads that share a KV head, which all see the same.
    Source: arXiv 2502.11089, equations 9 to 12; sizes as in the paper.
    """
    queries, keys = queries_and_keys(q, k, layout, equal=True)
    scores = compressed_scores(
        queries, keys, length=length, stride=stride, select_block=select_block
    )
    return mp.select.nsa(
        scores,
        count,
        select_block=select_block,
        initial=initial,
        local=local,
        block_size=block_size,
    )


@pattern(
    ATTENDED,
    "maskplan plan vmoba q.npy k.npy --chunk 128 --threshold 0.25 "
    "--scope head_global -o vmoba.plan",
)
def vmoba(
    *,
    q: QueryArray,
    k: KeyArray,
    chunk: Annotated[int, typer.Option(help="Keys of a chunk.", show_default=False)],
    scope: Annotated[
        str,
        typer.Option(
            help="What shares a choice: query_head each query of a head, block those of a chunk, "
            "head_global a head, overall everything.",
            show_default=False,
        ),
    ],
    count: Annotated[
        int | None, typer.Option("--k", help="Chunks per query on average, its own among them.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Or the share of the scores to keep, 0 to 1.")
    ] = None,
    layout: Layout = "bshd",
    block_size: tuple[int, int],
) -> mp.Plan:
    """VMoBA: each query sees its own chunk and the best of all, not causal.

    Scores are queries by the mean key of each chunk. Under a threshold they are
    brought to 0 to 1 in each scope; own chunks count first, and the best others
    are added, at least one, up to the one that reaches the share. Tokens are in
    the order of the chunks: for chunks of 2D or 3D, put q and k in that order
    first.
    Source: arXiv 2506.23858.
    """
    queries, keys = queries_and_keys(q, k, layout, equal=True)
    scores = mp.select.chunk_scores(queries, keys, chunk, layout="bhsd")
    return mp.select.vmoba(
        scores,
        chunk=chunk,
        k=count,
        threshold=threshold,
        scope=scope,
        block_size=block_size,
    )


def _refuse(what: str, where: str, got: object, wanted: str, remedy: str) -> None:
    raise PlanError(sentence(what=what, where=where, got=got, wanted=wanted, remedy=remedy))
