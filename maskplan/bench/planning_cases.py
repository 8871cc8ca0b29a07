"""Planning: from indices, masks and patterns to the lists that kernels walk.

On a GPU each work is a replayed CUDA graph, as a model would run it; that a call can be captured at
all shows that it waits for nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import maskplan as mp
from maskplan.bench.case import Case, Figure, Prepared, Work
from maskplan.bench.clock import graphed
from maskplan.bench.inputs import block_mask, selection
from maskplan.bench.peers import sorted_lists

WAN = (40, 591, 591)  # heads and blocks of 128 of Wan 2.1 at 720p
WAN_TOKENS = 75_600
GRID = (30, 48, 80)  # HunyuanVideo as sliding tile attention runs it: 115,200 tokens
WINDOW = 8000
OURS, READ, SCATTER = "maskplan", "indices.max()", "presence by scatter"
UNSAID, NARROW = "maskplan, blocks may be partial", "maskplan, lists of 128"
TRANSPOSE_MS = 0.2
READING = "ours / reading the indices once"


def cpu_cases() -> list[Case]:
    """Selections, block masks and closed forms on the host."""
    return [
        _topk_case("cpu", (2048, 16_384, 131_072), 4.0, compare=True),
        _mask_case("cpu", 0.1),
        *_pattern_cases("cpu", None),
    ]


def gpu_cases() -> list[Case]:
    """The same on the device, with transposing."""
    return [
        _topk_case("cuda", (2048, 16_384, 131_072), 2.0, compare=True),
        _transpose_case(0.1),
        *_pattern_cases("cuda", 0.5),
        _topk_case("cuda", (8192, 65_536, 524_288), 1.5, compare=False),
        _mask_case("cuda", 0.1),
    ]


def _planned(device: str, work: Work) -> Callable[[], Work]:
    return (lambda: work) if device == "cpu" else (lambda: graphed(work))


def _width(device: str) -> str:
    """Lists as wide as the longest row on a CPU, and as can be where that is not known."""
    return "compact" if device == "cpu" else "dense"


def _topk_case(device: str, sizes: tuple[int, int, int], at_most: float, *, compare: bool) -> Case:
    seqlen_q, topk, seqlen_k = sizes
    return Case(
        name=f"planning/topk/{device}/{seqlen_k}",
        title=f"top-k [{seqlen_q}, {topk}] of {seqlen_k} to forward lists",
        prepare=partial(_topk, device, sizes, at_most, compare=compare),
    )


def _topk(device: str, sizes: tuple[int, int, int], at_most: float, *, compare: bool) -> Prepared:
    seqlen_q, topk, seqlen_k = sizes
    indices = selection(seqlen_q, seqlen_k, topk, device)
    works = {
        OURS: _planned(device, partial(topk_lists, indices, seqlen_k, whole=True)),
        READ: _planned(device, indices.max),
    }
    figures = [Figure(label=READING, top=OURS, bottom=READ, at_most=at_most)]
    if compare:
        works[UNSAID] = _planned(device, partial(topk_lists, indices, seqlen_k, whole=False))
        works[SCATTER] = _planned(device, partial(scattered, indices, seqlen_k // 128))
        figures.append(Figure(label=f"{SCATTER} / ours", top=SCATTER, bottom=OURS))
    return Prepared(works=works, figures=tuple(figures))


def topk_lists(indices: Tensor, seqlen_k: int, *, whole: bool) -> Any:
    """Padded forward lists with counts, of keys that are whole blocks of 128.

    With `whole` that is said, and lists are as wide as it makes them; else it is found out.
    """
    plan = mp.from_topk(indices, seqlen_k, block_size=(1, 128), whole=whole)
    width = indices.shape[-1] // 128 if whole else _width(indices.device.type)
    return plan.block_sparse_tensors(width=width)


def scattered(indices: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """Counts and sorted lists by way of a presence matrix."""
    rows = indices[0, 0]
    presence = torch.zeros(len(rows), blocks, dtype=torch.bool, device=indices.device)
    presence.scatter_(1, (rows >> 7).long(), value=True)
    return sorted_lists(presence)


def _mask_case(device: str, density: float) -> Case:
    return Case(
        name=f"planning/block-mask/{device}/{density:g}",
        title=f"block mask {WAN}, density {density:g}, to forward lists",
        prepare=partial(_mask, device, density),
    )


def _mask(device: str, density: float) -> Prepared:
    mask, width = block_mask(WAN, density, device), _width(device)
    hand = "argsort by hand"
    return Prepared(
        works={
            OURS: _planned(device, lambda: wan_plan(mask).block_sparse_tensors(width=width)),
            hand: _planned(device, lambda: sorted_lists(mask)),
        },
        figures=(Figure(label=f"{hand} / ours", top=hand, bottom=OURS),),
    )


def wan_plan(mask: Tensor) -> mp.Plan:
    """The plan of a block mask for Wan's tokens."""
    return mp.from_block_mask(mask, WAN_TOKENS, WAN_TOKENS, block_size=(128, 128))


def _transpose_case(density: float) -> Case:
    return Case(
        name=f"planning/transpose/cuda/{density:g}",
        title=f"transpose of {WAN} blocks with write order, density {density:g}",
        prepare=partial(_transpose, density),
    )


def _transpose(density: float) -> Prepared:
    plan = wan_plan(block_mask(WAN, density, "cuda"))

    def work(width: int) -> object:
        return plan.transpose().block_sparse_tensors(width=width)

    return Prepared(
        works={
            OURS: _planned("cuda", partial(work, WAN[1])),
            NARROW: _planned("cuda", partial(work, 128)),
        },
        figures=(
            Figure(label="time", top=OURS, at_most=TRANSPOSE_MS),
            Figure(label="time with lists of 128", top=NARROW, at_most=TRANSPOSE_MS),
        ),
    )


def _pattern_cases(device: str, at_most: float | None) -> list[Case]:
    grid = mp.video.Grid(*GRID)
    options: dict[str, Any] = {"block_size": (128, 128)}
    if device != "cpu":
        options["device"] = device

    def tiles() -> mp.Plan:
        return mp.video.sliding_tile(grid, **options)

    def window() -> mp.Plan:
        length = grid.seqlen
        return mp.sliding_window(length, length, left=WINDOW, right=WINDOW, **options)

    builders = {"sliding-tile": (tiles, "3 x 3 x 3 tiles"), "window": (window, f"+-{WINDOW}")}
    return [
        Case(
            name=f"planning/{name}/{device}",
            title=f"{name} of {size} at {grid.seqlen} tokens, one head, to forward lists",
            prepare=partial(_pattern, device, build, at_most),
        )
        for name, (build, size) in builders.items()
    ]


def _pattern(device: str, build: Callable[[], mp.Plan], at_most: float | None) -> Prepared:
    width = _width(device)
    return _timed_alone(device, lambda: build().block_sparse_tensors(width=width), at_most)


def _timed_alone(device: str, work: Work, at_most: float | None) -> Prepared:
    """A work without a peer, judged by its own time in milliseconds."""
    limits = (Figure(label="time", top=OURS, at_most=at_most),)
    return Prepared(works={OURS: _planned(device, work)}, figures=limits)
