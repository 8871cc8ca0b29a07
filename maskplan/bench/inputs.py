"""Seeded inputs that cases share: tensors, block masks and selections."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import maskplan as mp
from maskplan.bench.case import Missing
from maskplan.lower.lowering import LIST_ENGINES

FORWARD_FLOPS, BACKWARD_FLOPS = 4, 10  # times pairs and channels: two and five matrix products
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tensors:
    """q [B, SQ, HQ, D], k and v [B, SK, HK, D], and dout like q, all normal noise."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor

    @classmethod
    def draw(
        cls,
        lengths: tuple[int, int],
        heads: tuple[int, int],
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: str,
    ) -> "Tensors":
        """For (SQ, SK) tokens and (HQ, HK) heads, batch 1."""
        noise = torch.Generator(device).manual_seed(SEED)

        def one(length: int, number: int) -> Tensor:
            shape = (1, length, number, head_dim)
            return torch.randn(shape, generator=noise, dtype=dtype, device=device)

        (sq, sk), (hq, hk) = lengths, heads
        return cls(q=one(sq, hq), k=one(sk, hk), v=one(sk, hk), dout=one(sq, hq))

    def leaves(self) -> list[Tensor]:
        """q, k and v as leaves that want gradients."""
        return [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]


def block_mask(shape: tuple[int, int, int], density: float, device: str) -> Tensor:
    """Blocks kept at random, and one on the diagonal of every row: bool [1, heads, M, N]."""
    heads, rows, cols = shape
    noise = torch.Generator(device).manual_seed(SEED + 1)
    kept = torch.rand(1, heads, rows, cols, generator=noise, device=device) < density
    place = torch.arange(rows, device=device)
    kept[:, :, place, place * cols // rows] = True
    return kept


def selection(
    seqlen_q: int, seqlen_k: int, topk: int, device: str, *, block: int = 128, share: int = 1
) -> Tensor:
    """int32 [1, 1, SQ, topk] ascending tokens: whole blocks at random, `share` queries alike."""
    noise = torch.Generator(device).manual_seed(SEED + 2)
    rows = seqlen_q // share
    scores = torch.rand(rows, seqlen_k // block, generator=noise, device=device)
    blocks = scores.topk(topk // block, dim=1).indices.sort(dim=1).values.int()
    inside = torch.arange(block, dtype=torch.int32, device=device)
    tokens = (blocks[:, :, None] * block + inside).view(rows, topk)
    return tokens.repeat_interleave(share, dim=0)[None, None]


def lowered(
    plan: mp.Plan, engine: str, tensors: Tensors, *, backward: tuple[str, ...] = ("loop_q",)
) -> Any:
    """`plan` lowered for an engine and the shapes of `tensors`, on their device.

    Raises:
        Missing: if fa4 has no kernels for this GPU.
    """
    q, k, v = tensors.q, tensors.k, tensors.v
    shape: dict[str, Any] = {}
    if engine in LIST_ENGINES:
        shape = {"head_dim": q.shape[3], "head_dim_v": v.shape[3]}
        shape |= {"heads": q.shape[2], "kv_heads": k.shape[2]}
    try:
        return plan.lower(engine, backward=backward, **shape).to(q.device)
    except mp.UnsupportedError as error:
        raise Missing(str(error)) from None
