"""A product of tiles, one MMA per 16 of its inner dimension.

NOTE [Descriptors]: the operands of every MMA are descriptors of 64 bits, each a constant away from
its tile's. Compilers compute them once, before the loop that issues the MMAs; a kernel of five
products has some sixty, more than the issuing warp has registers, and ptxas spills them. An offset
that is zero, but only known to be when the loop runs, keeps the additions in the loop: one an
operand, uniform and of 32 bits, since the constant goes into the same addition.
"""

from typing import Any

import cutlass
from cutlass import Int32, const_expr, cute
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import tcgen05
from cutlass.cutlass_dsl import T, dsl_user_op


@dsl_user_op
def zero_of(bit: Int32, *, loc: Any = None, ip: Any = None) -> Int32:
    """Zero, as the upper bits of a variable that is 0 or 1: see NOTE [Descriptors]."""
    return Int32(
        llvm.inline_asm(
            T.i32(),
            [bit.ir_value(loc=loc, ip=ip)],
            "shr.u32 $0, $1, 1;",
            "=r,r",
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
            loc=loc,
            ip=ip,
        )
    )


def operand(fragment: cute.Tensor, step: int, zero: Any) -> cute.Tensor:
    """[MMA, rows] of a step, by an addition to its tile's descriptor if `zero` is one."""
    if const_expr(zero is None):
        return fragment[None, None, step]
    offset = zero + cute.crd2idx((0, 0, step), fragment.layout)
    layout = cute.append(fragment[None, None, 0].layout, cute.make_layout(2, stride=1))
    return cute.make_tensor(fragment.iterator, layout)[None, None, offset]


@cute.jit
def gemm(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    accumulate: Any,
    first: cutlass.Constexpr[int] = 0,
    last: cutlass.Constexpr[int | None] = None,
    bit: Any = None,
) -> None:
    """Acc = a b, or += where `accumulate`.

    Args:
        mma: the product.
        acc: [MMA, rows, columns] in tensor memory.
        a: [MMA, rows, steps], descriptors or tensor memory.
        b: [MMA, columns, steps], descriptors.
        accumulate: whether to add to what `acc` holds.
        first: of the MMAs to issue, if not all.
        last: the one after them.
        bit: a variable that is 0 or 1, for descriptors that are not kept in registers; see
            NOTE [Descriptors].
    """
    zero = None if const_expr(bit is None) else zero_of(bit)
    zero_a = zero if const_expr(mma.op.a_src == tcgen05.OperandSource.SMEM) else None
    atom = cute.make_mma_atom(mma.op)
    steps = range(cute.size(a.shape[2]))[first:last]
    for i in cutlass.range_constexpr(steps.start, steps.stop):
        atom.set(tcgen05.Field.ACCUMULATE, True if const_expr(i > first) else accumulate)
        cute.gemm(atom, acc, operand(a, i, zero_a), operand(b, i, zero), acc)
