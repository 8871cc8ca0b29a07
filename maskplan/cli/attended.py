"""Queries and keys in .npy files, and what NSA's selection scores are made of."""

from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

import maskplan as mp
from maskplan.cli.arrays import read_array
from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.select.pooling import heads_first


def queries_and_keys(q: Path, k: Path, layout: str, *, equal: bool) -> tuple[Tensor, Tensor]:
    """(q, k), float32 [batch, heads, S, D].

    Args:
        q: file of queries.
        k: file of keys, whose heads divide those of the queries.
        layout: "bshd" or "bhsd".
        equal: whether there have to be as many queries as keys.

    Raises:
        PlanFileError: if a file is damaged or no .npy.
        PlanTypeError: if it does not hold floats of 4 axes, or the layout is unknown.
        PlanError: if it holds NaN or infinity, or the two do not go together.
        OSError: if it cannot be read.
    """
    queries, keys = (_floats(path, layout) for path in (q, k))
    (batch, heads, rows, depth), (k_batch, k_heads, cols, k_depth) = queries.shape, keys.shape
    together = (batch, depth) == (k_batch, k_depth) and k_heads and heads % k_heads == 0
    if not together or (equal and rows != cols):
        _refuse(
            "q and k do not go together",
            f"{q}, {k}",
            f"{list(queries.shape)} and {list(keys.shape)} as [batch, heads, S, D]",
            "the same batch and D, KV heads that divide the heads" + ", the same S" * equal,
            "pass the q and k of one attention call, and --layout bhsd if heads come first",
        )
    if not min(queries.numel(), keys.numel()):
        _refuse("arrays are empty", f"{q}, {k}", "no token", "at least one", "pass larger ones")
    return queries, keys


def compressed_scores(
    q: Tensor, k: Tensor, *, length: int, stride: int, select_block: int
) -> Tensor:
    """NSA's scores of selection blocks, with mean keys for compressed ones.

    Args:
        q: [batch, HQ, S, D].
        k: [batch, HK, S, D].
        length: keys of a compressed block.
        stride: keys from one compressed block to the next.
        select_block: keys of a selection block.

    Returns:
        float32 [batch, HQ, S, ceil(S / select_block)], the same for the heads of a group.

    Raises:
        PlanError: if a size is no multiple of `stride`, or larger than S where it is `length`.
    """
    stride, select_block = (
        integer(stride, "--stride", low=1),
        integer(select_block, "--select-block", low=1),
    )
    (batch, heads, seqlen, depth), groups = q.shape, k.shape[1]
    if integer(length, "--length", low=1) > seqlen:
        _refuse(
            "no compressed block fits",
            "--length",
            f"{length} keys of {seqlen}",
            f"at most {seqlen}",
            "pass a shorter length",
        )
    means = k.unfold(2, length, stride).mean(dim=-1)
    ends = torch.arange(means.shape[2]) * stride + length - 1
    absent = ends > torch.arange(seqlen)[:, None]
    blocks = -(-seqlen // select_block)
    shared = heads // groups
    scores = q.new_empty(batch, groups, seqlen, blocks)
    # One group at a time: all probabilities together would be S / stride times the queries.
    for b in range(batch):
        for g in range(groups):
            logits = q[b, g * shared : (g + 1) * shared] @ means[b, g].T * depth**-0.5
            weights = logits.masked_fill(absent, -torch.inf).softmax(dim=-1)
            # The first queries see no whole compressed block: their softmax is of nothing.
            weights = weights.masked_fill(absent, 0.0)
            found = mp.select.selection_scores(
                weights[None],
                length=length,
                stride=stride,
                select_block=select_block,
                blocks=blocks,
            )
            scores[b, g] = found[0].sum(dim=0)
    return scores.repeat_interleave(shared, dim=1)


def _floats(path: Path, layout: str) -> Tensor:
    array = heads_first(read_array(path, "f", 4).float(), str(path), layout)
    if not bool(array.isfinite().all()):
        got = f"NaN or infinity in {list(array.shape)}"
        _refuse("array is not finite", str(path), got, "finite floats", "find out where it arose")
    return array


def _refuse(what: str, where: str, got: object, wanted: str, remedy: str) -> NoReturn:
    raise PlanError(sentence(what=what, where=where, got=got, wanted=wanted, remedy=remedy))
