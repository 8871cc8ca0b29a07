"""Shared-memory operands of the tensor core: what a matrix descriptor addresses.

NOTE [Matrix descriptor]: bits 0-13 the address, 16-29 the leading-dimension byte offset LBO, 32-45
the stride byte offset SBO, each divided by 16; 46-47 version 1; 49-51 base offset; 61-63 the
layout: 0 none, 6, 4 and 2 swizzles of 32, 64 and 128 bytes. With a pitch of 16, 32, 64 or 128
bytes and chunks c of 16 bytes:

    K-major, swizzled:   (r mod 8) pitch + (r / 8) SBO + 16 c
    K-major, none:       (r mod 8) 16 + (r / 8) SBO + c LBO
    MN-major, swizzled:  (m mod pitch/16) 16 + (m / (pitch/16)) LBO + (k mod 8) pitch + (k / 8) SBO
    MN-major, none:      m SBO + (k mod 8) 16 + (k / 8) LBO

with row r, or chunk m of eight rows and depth k. Swizzling then exclusive-ors bits 4-6 of the
absolute address with bits 7-9, so a start inside of an atom just works.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernels_sm100.errors import MemoryFault, UninitialisedRead, UnknownInstruction

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cta import Cta
    from kernels_sm100.emulator.machine.warp import Warp

SWIZZLE_BITS = {0: 0, 2: 3, 4: 2, 6: 1}
Array = np.ndarray[Any, Any]


class Descriptor(NamedTuple):
    """Fields of a matrix descriptor, in bytes."""

    start: int
    leading: int
    stride: int
    version: int
    base: int
    layout: int


def describe(word: int) -> Descriptor:
    """The fields of a 64-bit matrix descriptor."""
    return Descriptor(
        start=(word & 0x3FFF) << 4,
        leading=(word >> 16 & 0x3FFF) << 4,
        stride=(word >> 32 & 0x3FFF) << 4,
        version=word >> 46 & 3,
        base=word >> 49 & 7,
        layout=word >> 61,
    )


@lru_cache(maxsize=4096)
def _chunks(
    layout: int, leading: int, stride: int, rows: int, within: int, *, mn_major: bool
) -> Array:
    """Chunk numbers of an operand of K = 16 two-byte elements, relative to a 1024-byte line."""
    bits = SWIZZLE_BITS[layout]
    pitch, wide = 16 << bits, 1 << bits
    if mn_major:
        m, k = np.arange(rows // 8)[:, None], np.arange(16)[None, :]
        if bits:
            at = (m % wide) * 16 + (m // wide) * leading + (k % 8) * pitch + (k // 8) * stride
        else:
            at = m * stride + (k % 8) * 16 + (k // 8) * leading
    else:
        r, c = np.arange(rows)[:, None], np.arange(2)[None, :]
        if bits:
            at = (r % 8) * pitch + (r // 8) * stride + c * 16
        else:
            at = (r % 8) * 16 + (r // 8) * stride + c * leading
    at = at + within
    swizzled: Array = (at ^ ((at >> 7 & (wide - 1)) << 4)) // 16
    return swizzled


class Operand:
    """An operand in the shared memory of one CTA: `rows` rows along M or N, 16 along K."""

    def __init__(self, warp: "Warp", cta: "Cta", word: int, rows: int, *, mn_major: bool) -> None:
        found = describe(word)
        if found.version != 1 or found.base or found.layout not in SWIZZLE_BITS:
            warp.fault(
                UnknownInstruction,
                what="matrix descriptor that is not modelled",
                got=f"{found} ({word:#x})",
                wanted="version 1, base offset 0, a layout of none, 32, 64 or 128 bytes",
                remedy="check the descriptor; its start has to be aligned to the swizzle atom",
            )
        self.cta, self.rows, self.mn_major = cta, rows, mn_major
        within = found.start % 1024
        relative = _chunks(
            found.layout, found.leading, found.stride, rows, within, mn_major=mn_major
        )
        self.chunks: Array = relative + (found.start - within) // 16
        low, high = int(self.chunks.min()) * 16, int(self.chunks.max()) * 16 + 16
        if not cta.shared.contains(low, high - low):
            warp.fault(
                MemoryFault,
                what="operand of the tensor core out of bounds",
                got=f"shared bytes [{low:#x}, {high:#x})",
                wanted=f"inside [{cta.shared.start:#x}, {cta.shared.end:#x})",
                remedy="check the descriptor's start and strides",
            )

    def fetch(self, warp: "Warp", kind: int) -> Array:
        """f32 [rows, 16]: `kind` 0 is f16, 1 is bf16."""
        shared = self.cta.shared
        known = shared.shadows[8].reshape(-1, 2)[self.chunks]
        if np.count_nonzero(known != 0x0101010101010101):
            hole = np.argwhere((known != 0x0101010101010101).any(axis=-1))[0]
            warp.fault(
                UninitialisedRead,
                what="MMA operand in shared memory that nobody wrote",
                got=f"bytes from {int(self.chunks[tuple(hole)]) * 16:#x}",
                wanted="a copy or a store before",
                remedy="check the descriptor, and what fills the tile",
            )
        octets = shared.views[2].reshape(-1, 8)[self.chunks]
        if self.mn_major:
            octets = octets.transpose(0, 2, 1)
        return as_float(octets.reshape(self.rows, 16), kind)


def as_float(raw: Array, kind: int) -> Array:
    """f32 of 16-bit patterns: `kind` 0 is f16, 1 is bf16."""
    if kind == 1:
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)
