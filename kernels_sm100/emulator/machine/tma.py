"""TMA: boxes of tensors between global and shared memory.

NOTE [Out of bounds]: elements of a box outside of the tensor are filled with zeros by a load and
left out by a store. A barrier still counts the bytes of the whole box.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from kernels_sm100.emulator.codegen.program import PARAMETER_WINDOW, SHARED_WINDOW
from kernels_sm100.emulator.codegen.tokens import DTYPE, TOKEN
from kernels_sm100.emulator.global_memory import LOWEST_ADDRESS, Allocation
from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine import atomics, bulk, generic, mbarrier, shared
from kernels_sm100.emulator.machine.tensor_map import MAP_BYTES, TensorMap, chunk_order, decode
from kernels_sm100.emulator.machine.uniform import running
from kernels_sm100.errors import TensorMapError

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cta import Cta
    from kernels_sm100.emulator.machine.warp import Warp

Array = np.ndarray[Any, Any]


def tensor_map(warp: "Warp", address: int) -> TensorMap:
    """The tensor map at a generic address: a kernel parameter, or global memory."""
    if address % 64:
        shared.misaligned(warp, "tensor map", address, 64)
    if PARAMETER_WINDOW <= address < LOWEST_ADDRESS:
        start = address - PARAMETER_WINDOW
        return decode(warp.grid.parameter_bytes[start : start + MAP_BYTES])
    if SHARED_WINDOW <= address < PARAMETER_WINDOW:
        warp.fault(
            TensorMapError,
            what="tensor map in shared or local memory",
            got=hex(address),
            wanted="a kernel parameter, constant or global memory",
            remedy="pass it as a __grid_constant__ parameter",
        )
    found, offset = generic.locate(warp, address, MAP_BYTES, "tensor map")
    return decode(found.data[offset : offset + MAP_BYTES].tobytes())


class Box:
    """Where a box lies: the part of it inside the tensor, in memory and in the box."""

    def __init__(
        self, warp: "Warp", tensor: TensorMap, corner: tuple[int, ...], box: tuple[int, ...]
    ) -> None:
        self.tensor = tensor
        self.shape = box[::-1]  # slowest first
        low = [max(0, -c) for c in corner]
        high = [min(b, s - c) for b, s, c in zip(box, tensor.size, corner, strict=True)]
        self.inside = tuple(slice(a, b) for a, b in zip(low[::-1], high[::-1], strict=True))
        self.empty = any(b <= a for a, b in zip(low, high, strict=True))
        if self.empty:
            return
        element = tensor.element_bytes
        start = sum((c + a) * s for c, a, s in zip(corner, low, tensor.strides, strict=True))
        extent = [b - a for a, b in zip(low, high, strict=True)]
        last = sum((n - 1) * s for n, s in zip(extent, tensor.strides, strict=True)) + element
        self.allocation, self.offset = generic.locate(
            warp, tensor.address + start, last, "access by TMA"
        )
        self.extent = tuple(extent[::-1])
        self.steps = tensor.strides[::-1]

    def view(self, of: Array, dtype: np.dtype[Any]) -> Array:
        """The part of the box in the array of the allocation, as elements."""
        base = of[self.offset :]
        size = base.size // dtype.itemsize * dtype.itemsize
        if self.offset % dtype.itemsize or size != base.size:
            base = base[:size]
        return as_strided(base.view(dtype), self.extent, self.steps)

    def row_starts(self) -> Array:
        """Byte offsets in the allocation of the contiguous rows inside."""
        starts = np.array([self.offset])
        for count, step in zip(self.extent[:-1], self.steps[:-1], strict=True):
            starts = (starts[:, None] + np.arange(count) * step).ravel()
        return starts

    @property
    def row_bytes(self) -> int:
        """Bytes of a contiguous row inside."""
        return self.extent[-1] * self.tensor.element_bytes


def _boxes(
    warp: "Warp",
    tensor: TensorMap,
    coordinates: tuple[Lanes, ...],
    lane: int,
    *,
    rank: int,
    rows: bool,
) -> list[Box]:
    """The boxes of one instruction: one, or four rows for gather and scatter."""
    at = tuple(int(c[lane]) for c in coordinates)
    if len(tensor.size) != rank or len(at) != (5 if rows else rank):
        warp.fault(
            TensorMapError,
            what="tensor map of another rank than its instruction",
            got=f"rank {len(tensor.size)} with {len(at)} coordinates",
            wanted=f"rank {rank}",
            remedy="check which descriptor is passed",
        )
    if not rows:
        return [Box(warp, tensor, at, tensor.box)]
    if rank != 2 or tensor.box[1] != 1:
        warp.fault(
            TensorMapError,
            what="gather or scatter with a box of several rows",
            got=tensor.box,
            wanted="a box of one row in two dimensions",
            remedy="build the descriptor for gather4",
        )
    return [Box(warp, tensor, (at[0], row), tensor.box) for row in at[1:]]


def _check_place(warp: "Warp", memory: shared.SharedMemory, offset: int, size: int) -> None:
    if offset % 128:
        shared.misaligned(warp, "shared address of TMA", offset, 128)
    shared.check_range(warp, memory, offset, size, "access by TMA")


def load(
    warp: "Warp",
    target: Lanes,
    base: Lanes,
    coordinates: tuple[Lanes, ...],
    place: Lanes,
    ctas: Lanes | None,
    mask: Mask | None,
    *,
    gather: bool,
    rank: int,
    pair: bool,
) -> None:
    """`cp.async.bulk.tensor` from global memory; every running lane issues one."""
    for lane in running(mask):
        tensor = tensor_map(warp, int(base[lane]))
        boxes = _boxes(warp, tensor, coordinates, lane, rank=rank, rows=gather)
        to = int(target[lane])
        size = tensor.box_bytes * len(boxes)
        for cta, barrier in bulk.receivers(
            warp, to, int(place[lane]), None if ctas is None else int(ctas[lane]), pair=pair
        ):
            _check_place(warp, cta.shared, to & 0xFFFFFF, size)
            shared.check_target(warp, cta.shared, to & 0xFFFFFF, size, "load by TMA")
            _load_one(warp, cta, to & 0xFFFFFF, boxes, size, barrier)
        warp.grid.report.counts["tma_load"] += 1
        warp.grid.report.counts["tma_load_bytes"] += size


def _load_one(
    warp: "Warp", cta: "Cta", offset: int, boxes: list[Box], size: int, barrier: mbarrier.Mbarrier
) -> None:
    tensor = boxes[0].tensor
    races = warp.races
    access = None
    if races is not None:
        access = races.issue_load(warp, barrier.address)
        races.async_shared(access, cta, slice(offset // 4, (offset + size) // 4), write=True)
        for box in boxes:
            if not box.empty:
                races.async_global(
                    access, box.allocation, box.row_starts(), box.row_bytes, write=None
                )

    def action() -> None:
        dtype = DTYPE[TOKEN[tensor.kind]]
        parts = []
        for box in boxes:
            filled = np.zeros(box.shape, dtype=dtype)
            if not box.empty:
                _check_rows(warp, box)
                filled[box.inside] = box.view(box.allocation.data, dtype)
            parts.append(filled.reshape(-1))
        octets = np.concatenate(parts).view(np.uint8).reshape(-1, 16)
        order = chunk_order(offset % 1024, len(octets), tensor.swizzle)
        chunks = cta.shared.data.reshape(-1, 16)
        chunks[order + (offset - offset % 1024) // 16] = octets
        cta.shared.written[offset : offset + size] = True
        if races is not None and access is not None:
            races.complete_load(access, barrier.address)
        mbarrier.deliver(warp, barrier, size)

    warp.grid.engine.load(warp, action)


def _check_rows(warp: "Warp", box: Box) -> None:
    if box.allocation.written is None:
        return
    for start in box.row_starts().tolist():
        generic.check_written(warp, box.allocation, start, box.row_bytes, "load by TMA")


def store(
    warp: "Warp",
    base: Lanes,
    coordinates: tuple[Lanes, ...],
    source: Lanes,
    op: str | None,
    mask: Mask | None,
    *,
    scatter: bool,
    rank: int,
) -> None:
    """`cp.async.bulk.tensor` to global memory, and its reductions.

    Lanes that issue the same store do it once here: doing it again changes nothing.
    """
    seen = set()
    for lane in running(mask):
        key = (int(base[lane]), int(source[lane]), *(int(c[lane]) for c in coordinates))
        if key in seen and op is None:
            warp.grid.report.warnings["the same TMA store by several lanes"] += 1
            continue
        seen.add(key)
        tensor = tensor_map(warp, key[0])
        boxes = _boxes(warp, tensor, coordinates, lane, rank=rank, rows=scatter)
        offset = key[1] & 0xFFFFFF
        size = tensor.box_bytes * len(boxes)
        _check_place(warp, warp.cta.shared, offset, size)
        _store_one(warp, lane, offset, boxes, size, op)
        warp.grid.report.counts["tma_store"] += 1
        warp.grid.report.counts["tma_store_bytes"] += size


def _store_one(
    warp: "Warp", lane: int, offset: int, boxes: list[Box], size: int, op: str | None
) -> None:
    tensor, cta = boxes[0].tensor, warp.cta
    item = bulk.open_item(warp, lane)
    if warp.races is not None:
        access = warp.races.issue_store(warp, item)
        warp.races.async_shared(access, cta, slice(offset // 4, (offset + size) // 4), write=False)
        for box in boxes:
            if not box.empty:
                warp.races.async_global(
                    access, box.allocation, box.row_starts(), box.row_bytes, write=op or "store"
                )

    def action() -> None:
        shared.check_written(warp, cta.shared, offset, size, "store by TMA")
        dtype = DTYPE[TOKEN[tensor.kind]]
        order = chunk_order(offset % 1024, size // 16, tensor.swizzle)
        chunks = cta.shared.data.reshape(-1, 16)[order + (offset - offset % 1024) // 16]
        parts = chunks.reshape(-1).view(dtype).reshape(len(boxes), *boxes[0].shape)
        for box, part in zip(boxes, parts, strict=True):
            if box.empty:
                continue
            memory = box.view(box.allocation.data, dtype)
            value = part[box.inside]
            memory[...] = (
                value if op is None else atomics.combine(op, tensor.kind, memory.copy(), value)
            )
            _mark_rows(box)
        item.done = True

    warp.grid.engine.pipe(("store", warp), warp, action)


def _mark_rows(box: Box) -> None:
    allocation: Allocation = box.allocation
    if allocation.written is not None:
        for start in box.row_starts().tolist():
            allocation.written[start : start + box.row_bytes] = True
