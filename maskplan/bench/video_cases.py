"""The scenario of video production: 128 heads share one list of keys, and each query selects.

128 query heads over one KV head, D=128, SQ = SK / 64 queries a rank, topk = SK / 8 keys each in
blocks of 128 tokens: one query's heads fill a tile. "Aligned" means that pairs of queries share a
selection, which is what kernels with tiles of 256 rows want. Planning is timed beside the kernels.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

import maskplan as mp
from maskplan.bench import peers
from maskplan.bench.case import Case, Figure, Prepared, Work
from maskplan.bench.clock import graphed
from maskplan.bench.inputs import BACKWARD_FLOPS, FORWARD_FLOPS, Tensors, lowered, selection
from maskplan.bench.peers import WAYS, one_way

HEADS, HEAD_DIM, BLOCK = 128, 128, 128
LENGTHS = (131_072, 32_768, 262_144, 65_536, 524_288)
PLANNING, OURS, DENSE = "planning", "maskplan fa4", "FA4 dense on gathered keys"


def gpu_cases() -> list[Case]:
    """Every length, with a list per query and with lists shared by pairs, both directions."""
    return [
        Case(
            name=f"video/{way}/{'aligned' if share > 1 else 'unaligned'}/{seqlen}",
            title=f"video {way}, SQ={seqlen // 64} SK={seqlen} topk={seqlen // 8}, "
            f"{'pairs of queries share a list' if share > 1 else 'a list per query'}",
            prepare=partial(_prepare, seqlen, share, way),
        )
        for seqlen in LENGTHS
        for share in (1, 2)
        for way in WAYS
    ]


def _prepare(seqlen: int, share: int, way: str) -> Prepared:
    seqlen_q, topk = seqlen // 64, seqlen // 8
    indices = selection(seqlen_q, seqlen, topk, "cuda", block=BLOCK, share=share)
    tensors = _draw(seqlen_q, seqlen)
    each = FORWARD_FLOPS if way == "forward" else BACKWARD_FLOPS
    wanted = each * seqlen_q * topk * HEADS * HEAD_DIM
    return Prepared(
        works={
            OURS: one_way(partial(_ours, tensors, indices, seqlen), way),
            DENSE: one_way(lambda: peers.fa4(_draw(seqlen_q, topk)), way),
            PLANNING: partial(_planning, tensors, indices, seqlen, way),
        },
        figures=(
            Figure(label="planning / kernel", top=PLANNING, bottom=OURS),
            Figure(label="dense on gathered keys / ours", top=DENSE, bottom=OURS),
        ),
        flops={OURS: wanted, DENSE: wanted},
    )


def _draw(seqlen_q: int, seqlen_k: int) -> Tensors:
    lengths, heads = (seqlen_q, seqlen_k), (HEADS, 1)
    return Tensors.draw(lengths, heads, HEAD_DIM, dtype=torch.bfloat16, device="cuda")


def _plan(indices: Tensor, seqlen: int) -> mp.Plan:
    return mp.from_topk(indices, seqlen, block_size=(1, BLOCK), whole=True)


def _ours(tensors: Tensors, indices: Tensor, seqlen: int) -> peers.Calls:
    ready = lowered(_plan(indices, seqlen), "fa4", tensors)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mp.attention(q, k, v, ready, backend="fa4")

    return peers.by_autograd(tensors, attend)


def _planning(tensors: Tensors, indices: Tensor, seqlen: int, way: str) -> Work:
    """From indices to the lists of the forward, or of both directions, as a graph's replay."""
    backward = () if way == "forward" else ("loop_q",)

    def work() -> Any:
        return lowered(_plan(indices, seqlen), "fa4", tensors, backward=backward)

    return graphed(work)
