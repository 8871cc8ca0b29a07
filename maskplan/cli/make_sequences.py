"""`maskplan plan`, patterns that lengths alone decide."""

from typing import Annotated

import typer

import maskplan as mp
from maskplan.cli.pattern import pattern

Length = Annotated[int, typer.Argument(metavar="SQ", help="Queries, in tokens.")]
KeyLength = Annotated[int | None, typer.Option(help="Keys, in tokens; SQ where not given.")]
Align = Annotated[
    str | None, typer.Option(help="top_left or bottom_right, needed when the lengths differ.")
]

SEQUENCES = "Sequences"


@pattern(SEQUENCES, "maskplan plan causal 4096 -o causal.plan")
def causal(
    *,
    seqlen_q: Length,
    seqlen_k: KeyLength = None,
    align: Align = None,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Each query sees the keys up to its own position."""
    keys = seqlen_q if seqlen_k is None else seqlen_k
    return mp.causal(seqlen_q, keys, align=align, block_size=block_size)


@pattern(SEQUENCES, "maskplan plan full 1000 -o full.plan")
def full(
    *,
    seqlen_q: Length,
    seqlen_k: KeyLength = None,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Each query sees every key: dense attention, to compare with."""
    keys = seqlen_q if seqlen_k is None else seqlen_k
    return mp.full(seqlen_q, keys, block_size=block_size)


@pattern(SEQUENCES, "maskplan plan sliding-window 4096 --left 255 --right 0 -o window.plan")
def sliding_window(
    *,
    seqlen_q: Length,
    left: Annotated[int | None, typer.Option(help="Keys before; all where not given.")] = None,
    right: Annotated[int | None, typer.Option(help="Keys after; all where not given.")] = None,
    seqlen_k: KeyLength = None,
    align: Align = None,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Each query sees the keys around its own position."""
    keys = seqlen_q if seqlen_k is None else seqlen_k
    return mp.sliding_window(
        seqlen_q, keys, left=left, right=right, align=align, block_size=block_size
    )


@pattern(SEQUENCES, "maskplan plan documents 700 300 --causal -o documents.plan")
def documents(
    *,
    lengths: Annotated[list[int], typer.Argument(help="Tokens of each document, in order.")],
    causal: Annotated[bool, typer.Option("--causal", help="Causal in each document.")] = False,
    block_size: tuple[int, int],
) -> mp.Plan:
    """Documents one after another, each attending to itself only."""
    return mp.documents(lengths, causal=causal, block_size=block_size)


@pattern(SEQUENCES, "maskplan plan a-shape 4096 --n-init 100 --n-local 800 -o a.plan")
def a_shape(
    *,
    seqlen: Annotated[int, typer.Argument(metavar="S", help="Queries and keys, in tokens.")],
    n_init: Annotated[int, typer.Option(help="Leading keys that all see.", show_default=False)],
    n_local: Annotated[int, typer.Option(help="Keys before a query.", show_default=False)],
    block_size: tuple[int, int],
) -> mp.Plan:
    """Causal: the first keys, and the keys just before each query.

    Source: MInference (arXiv 2407.02490), its stream_llm heads.
    """
    return mp.select.a_shape(seqlen, n_init=n_init, n_local=n_local, block_size=block_size)
