"""Attention over selected tokens on a CPU, both ways: gathered, in blocks with bits, and by SDPA.

Rates count the pairs that are selected, or all of a dense engine.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

import maskplan as mp
from maskplan.bench import peers
from maskplan.bench.attention_cases import ours
from maskplan.bench.case import Case, Figure, Prepared
from maskplan.bench.inputs import BACKWARD_FLOPS, FORWARD_FLOPS, SEED, Tensors
from maskplan.bench.peers import WAYS, Calls, one_way

SEQLEN_K, HEAD_DIM = 4096, 128
NAMES = {1: "a list a head", 16: "a list for 16 heads"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`topk` of SEQLEN_K keys for each query token, alike for all `heads` query heads."""

    seqlen_q: int
    heads: int
    topk: int

    def tensors(self) -> Tensors:
        """Seeded inputs, with one KV head."""
        lengths, heads = (self.seqlen_q, SEQLEN_K), (self.heads, 1)
        return Tensors.draw(lengths, heads, HEAD_DIM, dtype=torch.float32, device="cpu")

    def indices(self) -> Tensor:
        """int32 [1, 1, SQ, topk] ascending random keys."""
        noise = torch.Generator().manual_seed(SEED + 3)
        scores = torch.rand(1, 1, self.seqlen_q, SEQLEN_K, generator=noise)
        return scores.topk(self.topk).indices.sort(dim=-1).values.int()

    def __str__(self) -> str:
        return (
            f"SQ={self.seqlen_q} SK={SEQLEN_K} H={self.heads}/1 D={HEAD_DIM} float32, "
            f"{self.topk} keys a token"
        )


SELECTIONS = (
    Selection(seqlen_q=1024, heads=1, topk=128),
    Selection(seqlen_q=1024, heads=1, topk=512),
    Selection(seqlen_q=256, heads=16, topk=128),
    Selection(seqlen_q=256, heads=16, topk=512),
)


def cpu_cases() -> list[Case]:
    """Each selection, forward and backward."""
    return [
        Case(
            name=f"attention/cpu-tokens/{way}/h{shape.heads}/{shape.topk}",
            title=f"{way}, {shape}: {NAMES[shape.heads]}",
            prepare=partial(_selected, shape, way),
        )
        for shape in SELECTIONS
        for way in WAYS
    ]


def _selected(shape: Selection, way: str) -> Prepared:
    tensors, indices = shape.tensors(), shape.indices()
    plan = mp.from_topk(indices, SEQLEN_K)
    makers: dict[str, Callable[[], Calls]] = {
        "maskplan cpu": partial(ours, tensors, plan, "cpu"),
        "in blocks": partial(_in_blocks, tensors, plan),
        "SDPA gathered": partial(_gathered_sdpa, tensors, indices),
        "SDPA dense": partial(peers.sdpa, tensors),
    }
    figures = [
        Figure(label=f"{name} / ours", top=name, bottom="maskplan cpu")
        for name in makers
        if name != "maskplan cpu"
    ]
    each = (FORWARD_FLOPS if way == "forward" else BACKWARD_FLOPS) * HEAD_DIM
    pairs = shape.heads * shape.seqlen_q
    return Prepared(
        works={name: one_way(make, way) for name, make in makers.items()},
        figures=tuple(figures),
        flops={
            name: each * pairs * (SEQLEN_K if name == "SDPA dense" else shape.topk)
            for name in makers
        },
    )


def _in_blocks(tensors: Tensors, plan: mp.Plan) -> Calls:
    """The same plan walked block by block, dropped pairs masked by bits."""
    lowered = replace(plan.lower("cpu"), reading=None)
    return peers.by_autograd(tensors, lambda q, k, v: mp.attention(q, k, v, lowered, backend="cpu"))


def _gathered_sdpa(tensors: Tensors, indices: Tensor) -> Calls:
    """`scaled_dot_product_attention` of each token's heads with its keys, gathered by indexing."""
    from torch.nn.functional import scaled_dot_product_attention

    keys = indices[0, 0].long()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        near_k, near_v = k[0, :, 0][keys], v[0, :, 0][keys]  # [SQ, topk, D]
        # Heads of a token are the rows of one product: [SQ, 1, heads, D].
        out = scaled_dot_product_attention(q[0][:, None], near_k[:, None], near_v[:, None])
        return out.transpose(0, 1)

    return peers.by_autograd(tensors, attend)
