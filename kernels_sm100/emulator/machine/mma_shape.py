"""What the instruction descriptor of a tcgen05.mma says.

NOTE [Instruction descriptor]: of kind::f16, bits 4-5 the type of D (0 f16, 1 f32), 7-9 and 10-12
the types of A and B (0 f16, 1 bf16), 13 and 14 negate A and B, 15 and 16 make A and B MN-major,
17-22 are N / 8, 24-28 are M / 16.
"""

from typing import TYPE_CHECKING, NamedTuple

from kernels_sm100.errors import UnknownInstruction

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.warp import Warp


class Shape(NamedTuple):
    """What an instruction descriptor says."""

    m: int
    n: int
    a_kind: int
    b_kind: int
    negative: bool
    a_mn_major: bool
    b_mn_major: bool


def shape_of(warp: "Warp", word: int, group: int) -> Shape:
    """The fields of an instruction descriptor, checked (NOTE [Instruction descriptor])."""
    m, n = (word >> 24 & 31) << 4, (word >> 17 & 63) << 3
    kinds = word >> 7 & 7, word >> 10 & 7
    step = 8 if m == 64 else 16 if group == 1 or m == 256 else 32
    legal = m in ((64, 128) if group == 1 else (128, 256))
    if (
        (word >> 4 & 3) != 1
        or word & 0xF
        or word >> 29
        or max(kinds) > 1
        or not legal
        or n % step
        or not 0 < n <= 256
    ):
        warp.fault(
            UnknownInstruction,
            what="tcgen05.mma that is not modelled",
            got=f"M {m}, N {n}, types {kinds} to {word >> 4 & 3}, cta_group::{group} ({word:#x})",
            wanted="f16 or bf16 to f32, dense; M 64 or 128 of one CTA, 128 or 256 of two; legal N",
            remedy="check the instruction descriptor",
        )
    return Shape(
        m,
        n,
        *kinds,
        bool((word >> 13 ^ word >> 14) & 1),
        bool(word >> 15 & 1),
        bool(word >> 16 & 1),
    )
