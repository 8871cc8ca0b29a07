"""Attention under random whole blocks, both ways, beside dense engines and calls by hand.

Rates count the pairs that are wanted: those kept, or all of a dense engine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import maskplan as mp
from maskplan.bench import peers
from maskplan.bench.case import Case, Figure, Prepared, Work
from maskplan.bench.clock import HostClock
from maskplan.bench.inputs import BACKWARD_FLOPS, FORWARD_FLOPS, Tensors, block_mask, lowered
from maskplan.bench.peers import WAYS, Calls, one_way

BLOCK = 128
DENSITIES = (0.1, 1.0, 0.5, 0.2)
NOT_SLOWER = 0.98  # of calling the engine by hand
OVERHEAD_US = 30.0
STEPS = {
    "forward": "a forward call",
    "training": "a forward call that wants gradients",
    "backward": "a backward call through autograd",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A square problem of whole blocks."""

    seqlen: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: str

    def tensors(self) -> Tensors:
        """Seeded inputs."""
        lengths, heads = (self.seqlen, self.seqlen), (self.heads, self.heads)
        return Tensors.draw(lengths, heads, self.head_dim, dtype=self.dtype, device=self.device)

    def mask(self, density: float) -> Tensor:
        """Which blocks are kept, bool [1, H, M, M] on the device."""
        blocks = self.seqlen // BLOCK
        return block_mask((self.heads, blocks, blocks), density, self.device)

    def plan(self, mask: Tensor) -> mp.Plan:
        """The exact plan of `mask`."""
        size = (BLOCK, BLOCK)
        return mp.from_block_mask(mask.cpu(), self.seqlen, self.seqlen, block_size=size)

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"S={self.seqlen} H={self.heads} D={self.head_dim} {kind}"


GPU_SHAPE = Shape(seqlen=32_768, heads=12, head_dim=128, dtype=torch.bfloat16, device="cuda")
TINY_SHAPE = Shape(seqlen=512, heads=2, head_dim=128, dtype=torch.bfloat16, device="cuda")


def cpu_shape(head_dim: int) -> Shape:
    """S=4096, four heads."""
    return Shape(seqlen=4096, heads=4, head_dim=head_dim, dtype=torch.float32, device="cpu")


def cpu_cases() -> list[Case]:
    """The cpu backend beside dense SDPA and, forward, compiled FlexAttention."""
    return [
        Case(
            name=f"attention/cpu/{way}/d{head_dim}/{density:g}",
            title=f"{way}, {cpu_shape(head_dim)}, block density {density:g}",
            prepare=partial(_cpu, cpu_shape(head_dim), density, way),
        )
        for head_dim in (128, 64)
        for density in DENSITIES
        for way in WAYS
    ]


def gpu_cases() -> list[Case]:
    """The fa4 and flex backends beside the same engines by hand, and dense ones."""
    cases = [
        Case(
            name=f"attention/{engine}/{way}/{density:g}",
            title=f"{way}, {GPU_SHAPE}, block density {density:g}, {engine}",
            prepare=partial(_gpu, GPU_SHAPE, engine, density, way),
        )
        for engine in ("fa4", "flex")
        for density in DENSITIES
        for way in WAYS
    ]
    overheads = [
        Case(
            name=f"overhead/{engine}/{step}",
            title=f"host time of {STEPS[step]}, {TINY_SHAPE}, {engine}",
            prepare=partial(_overhead, engine, step),
        )
        for engine in ("fa4", "flex")
        for step in STEPS
    ]
    return [*overheads, *cases]  # host time before anything has run that leaves threads behind


def _cpu(shape: Shape, density: float, way: str) -> Prepared:
    tensors, mask = shape.tensors(), shape.mask(density)
    makers: dict[str, Callable[[], Calls]] = {
        "maskplan cpu": partial(ours, tensors, shape.plan(mask), "cpu"),
        "SDPA dense": partial(peers.sdpa, tensors),
    }
    if way == "forward":  # FlexAttention has no backward on a CPU
        makers["flex by hand"] = partial(peers.flex, tensors, mask, BLOCK)
    figures = [Figure(label="SDPA dense / ours", top="SDPA dense", bottom="maskplan cpu")]
    figures += [Figure(label="flex by hand / ours", top="flex by hand", bottom="maskplan cpu")]
    return _prepared(shape, mask, way, makers, figures)


def _gpu(shape: Shape, engine: str, density: float, way: str) -> Prepared:
    tensors, mask = shape.tensors(), shape.mask(density)
    mine, hand = f"maskplan {engine}", f"{engine} by hand"
    makers: dict[str, Callable[[], Calls]] = {
        mine: partial(ours, tensors, shape.plan(mask), engine),
        hand: partial(by_hand, tensors, mask, engine),
    }
    figures = [Figure(label=f"{hand} / ours", top=hand, bottom=mine, at_least=NOT_SLOWER)]
    if engine == "fa4":
        makers["FA4 dense"] = partial(peers.fa4, tensors)
        makers["SDPA dense"] = partial(peers.sdpa, tensors)
        dense = ("FA4 dense", "SDPA dense")
        figures += [Figure(label=f"{peer} / ours", top=peer, bottom=mine) for peer in dense]
    return _prepared(shape, mask, way, makers, figures)


def _prepared(
    shape: Shape,
    mask: Tensor,
    way: str,
    makers: dict[str, Callable[[], Calls]],
    figures: list[Figure],
) -> Prepared:
    each = (FORWARD_FLOPS if way == "forward" else BACKWARD_FLOPS) * shape.head_dim
    kept = int(mask.sum()) * BLOCK * BLOCK
    every = shape.heads * shape.seqlen * shape.seqlen
    return Prepared(
        works={name: one_way(make, way) for name, make in makers.items()},
        figures=tuple(figures),
        flops={name: each * (every if "dense" in name else kept) for name in makers},
    )


def ours(tensors: Tensors, plan: mp.Plan, engine: str) -> Calls:
    """`maskplan.attention` on a lowered plan."""
    ready = lowered(plan, engine, tensors)
    return peers.by_autograd(tensors, partial(_attend, ready, engine))


def by_hand(tensors: Tensors, mask: Tensor, engine: str) -> Calls:
    """The engine itself, with lists made from the mask."""
    call = peers.fa4 if engine == "fa4" else peers.flex
    return call(tensors, mask, BLOCK)


def _attend(plan: mp.LoweredPlan, engine: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return mp.attention(q, k, v, plan, backend=engine)


def _our_attend(tensors: Tensors, mask: Tensor, engine: str) -> Callable[..., Tensor]:
    return partial(_attend, lowered(TINY_SHAPE.plan(mask), engine, tensors), engine)


def _hand_attend(tensors: Tensors, mask: Tensor, engine: str) -> Callable[..., Tensor]:
    if engine == "fa4":
        return peers.fa4_attend(mask, BLOCK)
    return peers.flex_attend(tensors, mask, BLOCK)


def _training(tensors: Tensors, make: Callable[[], Callable[..., Tensor]], step: str) -> Work:
    """A step of training with a differentiable function of q, k, v."""
    attend = make()
    backward = peers.by_autograd(tensors, attend)[1]  # which lets graphs be kept, for either step
    if step == "backward":
        return backward()
    leaves = tensors.leaves()
    return lambda: attend(*leaves)


def _overhead(engine: str, step: str) -> Prepared:
    """A problem so small that the GPU waits for the host."""
    tensors, mask = TINY_SHAPE.tensors(), TINY_SHAPE.mask(0.5)
    mine, hand = f"maskplan {engine}", f"{engine} by hand"
    works: dict[str, Callable[[], Work]]
    if step == "forward":  # by hand the engine's function, and no autograd that it may have
        works = {
            mine: one_way(partial(ours, tensors, TINY_SHAPE.plan(mask), engine), "forward"),
            hand: one_way(partial(by_hand, tensors, mask, engine), "forward"),
        }
    else:
        works = {
            mine: partial(_training, tensors, partial(_our_attend, tensors, mask, engine), step),
            hand: partial(_training, tensors, partial(_hand_attend, tensors, mask, engine), step),
        }
    label = f"ours less {hand}"
    return Prepared(
        works=works,
        figures=(Figure(label=label, top=mine, bottom=hand, at_most=OVERHEAD_US, difference=True),),
        clock=HostClock(),
    )
