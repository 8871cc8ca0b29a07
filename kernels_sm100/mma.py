"""A product of tiles, one MMA per 16 of its inner dimension."""

from typing import Any

import cutlass
from cutlass import const_expr, cute
from cutlass.cute.nvgpu import tcgen05


@cute.jit
def gemm(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    accumulate: Any,
    first: cutlass.Constexpr[int] = 0,
    last: cutlass.Constexpr[int | None] = None,
) -> None:
    """Acc = a b, or += where `accumulate`; `first` and `last` cut out a range of MMAs."""
    atom = cute.make_mma_atom(mma.op)
    steps = range(cute.size(a.shape[2]))[first:last]
    for i in cutlass.range_constexpr(steps.start, steps.stop):
        atom.set(tcgen05.Field.ACCUMULATE, True if const_expr(i > first) else accumulate)
        cute.gemm(atom, acc, a[None, None, i], b[None, None, i], acc)
