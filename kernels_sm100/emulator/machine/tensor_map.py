"""TMA descriptors: the 128 bytes that host code builds, decoded.

NOTE [Layout of a tensor map]: only the first 64 bytes mean anything. As 32-bit words: w0, w1 the
global address; w2 flags: bits 4-6 rank - 1, 7-10 type, 11-12 interleave, 13-14 swizzle; w3-w6 the
byte strides of dimensions 1 to 4, divided by 16, low halves, with bits 32-35 of each in the
nibbles of w7; w8-w12 the sizes - 1; w13 bits 24-31 and the bytes of w14 the box sizes - 1; w13
bits 0-23 the element strides - 1, three bits each for dimensions 0 to 4 and more, all 0 in
practice. The layout is not published. It was read off descriptors of ranks 1 to 5, seven types and
all swizzles that CuTe DSL builds on the host, and loads and stores through it give the right
tensors.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kernels_sm100.errors import TensorMapError, sentence

MAP_BYTES = 128
# PTX names of the element types by code, and their sizes in bytes.
TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32", "f64", "bf16", "f32", "f32")
SIZES = {"u8": 1, "u16": 2, "f16": 2, "bf16": 2, "u64": 8, "s64": 8, "f64": 8}
SWIZZLE_SPAN = (0, 32, 64, 128)  # bytes of a row within which 16-byte chunks are permuted


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor in global memory and the box that moves at once; dimension 0 is contiguous.

    Attributes:
        address: of element (0, ..., 0).
        kind: PTX element type.
        size: elements of each dimension.
        strides: bytes from one index to the next, of each dimension.
        box: elements of the box in each dimension.
        swizzle: 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes.
    """

    address: int
    kind: str
    size: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return SIZES.get(self.kind, 4)

    @property
    def box_bytes(self) -> int:
        """Bytes that a box takes in shared memory, out-of-bounds elements included."""
        return int(np.prod(self.box)) * self.element_bytes


def _refuse(what: str, got: object, wanted: object) -> TensorMapError:
    return TensorMapError(
        sentence(
            what=what,
            where="a tensor map",
            got=got,
            wanted=wanted,
            remedy="check the descriptor that the host code built",
        )
    )


@lru_cache(maxsize=256)
def decode(raw: bytes) -> TensorMap:
    """The tensor map in 128 bytes (NOTE [Layout of a tensor map]).

    Raises:
        TensorMapError: fields that no driver writes, or that the emulator does not model.
    """
    word = [int(w) for w in np.frombuffer(raw, dtype="<u4")]
    flags = word[2]
    rank, code = ((flags >> 4) & 7) + 1, (flags >> 7) & 15
    interleave, swizzle = (flags >> 11) & 3, (flags >> 13) & 3
    if rank > 5 or code >= len(TYPES):
        raise _refuse("impossible rank or element type", (rank, code), "rank 1 to 5, type below 13")
    if interleave or word[13] & 0xFFFFFF:
        raise _refuse(
            "interleaved layout or element strides", hex(word[13] & 0xFFFFFF), "neither of the two"
        )
    kind = TYPES[code]
    element = SIZES.get(kind, 4)
    outer = [(word[3 + d] | ((word[7] >> (4 * d)) & 15) << 32) * 16 for d in range(rank - 1)]
    box = [(word[13] >> 24) + 1] + [((word[14] >> (8 * d)) & 255) + 1 for d in range(rank - 1)]
    found = TensorMap(
        address=word[0] | word[1] << 32,
        kind=kind,
        size=tuple(word[8 + d] + 1 for d in range(rank)),
        strides=(element, *outer),
        box=tuple(box),
        swizzle=swizzle,
    )
    if found.address % 16:
        raise _refuse("misaligned tensor", hex(found.address), "an address divisible by 16")
    row = box[0] * element
    if row % 16 or (swizzle and row > SWIZZLE_SPAN[swizzle]):
        limit = f" and at most {SWIZZLE_SPAN[swizzle]}" if swizzle else ""
        raise _refuse(
            "inner box of a size that cannot be moved", f"{row} bytes", f"a multiple of 16{limit}"
        )
    return found


def encode(found: TensorMap) -> bytes:
    """The descriptor of a tensor map; the inverse of `decode`, for tests and hand-made launches."""
    rank = len(found.size)
    word = [0] * 32
    word[0], word[1] = found.address & 0xFFFFFFFF, found.address >> 32
    code = TYPES.index(found.kind)
    word[2] = 2 | (rank - 1) << 4 | code << 7 | found.swizzle << 13 | 1 << 18
    for d, stride in enumerate(found.strides[1:]):
        word[3 + d] = (stride // 16) & 0xFFFFFFFF
        word[7] |= (stride // 16 >> 32) << (4 * d)
    for d, size in enumerate(found.size):
        word[8 + d] = size - 1
    word[13] = (found.box[0] - 1) << 24
    for d, size in enumerate(found.box[1:]):
        word[14] |= (size - 1) << (8 * d)
    return np.array(word, dtype="<u4").tobytes()


@lru_cache(maxsize=1024)
def chunk_order(start: int, count: int, swizzle: int) -> np.ndarray:
    """Numbers, relative to `start - start % 1024`, of the 16-byte chunks that a box fills in order.

    Swizzling exclusive-ors bits 4 to 6 of the shared address with bits 7 to 9, as many of them as
    the span has.
    """
    address = start % 1024 + 16 * np.arange(count)
    mask = (0, 1, 3, 7)[swizzle]
    return (address ^ ((address >> 7 & mask) << 4)) // 16
