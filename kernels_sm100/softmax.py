"""Online softmax of one row that a thread owns, in powers of two."""

import math
from typing import Any

import cutlass
from cutlass import Float32, const_expr, cute
from cutlass._mlir.dialects import nvvm
from cutlass.cutlass_dsl import dsl_user_op

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
_CHAINS = 4  # independent chains of a reduction, for latency


@dsl_user_op
def max3(a: Any, b: Any, c: Any, *, loc: Any = None, ip: Any = None) -> Float32:
    """The largest of three, in one instruction."""
    a, b, c = (Float32(x).ir_value(loc=loc, ip=ip) for x in (a, b, c))
    return Float32(nvvm.fmax(a, b, c=c, loc=loc, ip=ip))


@cute.jit
def row_maximum(scores: cute.Tensor, start: Float32) -> Float32:
    """The largest of `start` and all `scores`, NaN left out."""
    size = const_expr(cute.size(scores))
    pairs = [(scores[2 * c], scores[2 * c + 1]) for c in range(_CHAINS)]
    chains = [max3(*pairs[0], start), *(cute.arch.fmax(*pair) for pair in pairs[1:])]
    for i in cutlass.range_constexpr(2 * _CHAINS, size, 2):
        c = i // 2 % _CHAINS
        chains[c] = max3(chains[c], scores[i], scores[i + 1])
    return cute.arch.fmax(max3(chains[0], chains[1], chains[2]), chains[3])


@cute.jit
def row_total(values: cute.Tensor, start: Float32) -> Float32:
    """`start` plus the sum of `values`, two at a time in four chains."""
    size = const_expr(cute.size(values))
    chains = [(values[2 * c], values[2 * c + 1]) for c in range(_CHAINS)]
    chains[0] = cute.arch.add_packed_f32x2(chains[0], (start, Float32(0.0)))
    for i in cutlass.range_constexpr(2 * _CHAINS, size, 2):
        c = i // 2 % _CHAINS
        chains[c] = cute.arch.add_packed_f32x2(chains[c], (values[i], values[i + 1]))
    left = cute.arch.add_packed_f32x2(chains[0], chains[1])
    right = cute.arch.add_packed_f32x2(chains[2], chains[3])
    both = cute.arch.add_packed_f32x2(left, right)
    return both[0] + both[1]


@cute.jit
def next_maximum(
    old: Float32, found: Float32, scale_log2: Float32, lag_log2: cutlass.Constexpr[float]
) -> tuple[Float32, Float32, Float32]:
    """(maximum to go on with, maximum to subtract, factor for what is accumulated).

    NOTE [Lazy rescale]: any reference at least as large as all scores but for a bounded factor
    keeps exp2 in range, so the maximum may stay `lag_log2` behind and O need not be rescaled; the
    factor is then exactly 1. A row with no key so far has maximum -inf and subtracts 0, so that
    -inf - -inf never happens: its P is 0, and its factor exp2(-inf) = 0.
    """
    safe = found if found != -Float32.inf else Float32(0.0)
    shift = (old - safe) * scale_log2
    factor = cute.math.exp2(shift, fastmath=True)
    if const_expr(lag_log2 > 0.0):
        if shift >= -lag_log2:
            found = old
            safe = old
            factor = Float32(1.0)
    return found, safe, factor


@cute.jit
def exponentials(scores: cute.Tensor, scale_log2: Float32, bias: Float32) -> None:
    """Scores <- exp2(scores * scale_log2 + bias), in place."""
    for i in cutlass.range_constexpr(0, cute.size(scores), 2):
        scores[i], scores[i + 1] = cute.arch.fma_packed_f32x2(
            (scores[i], scores[i + 1]), (scale_log2, scale_log2), (bias, bias)
        )
        scores[i] = cute.math.exp2(scores[i], fastmath=True)
        scores[i + 1] = cute.math.exp2(scores[i + 1], fastmath=True)


@cute.jit
def log_sum_exp(maximum: Float32, total: Float32, scale_log2: Float32) -> Float32:
    """Natural log of a row's sum of exponentials; -inf where no key was kept."""
    value = (maximum * scale_log2 + cute.math.log2(total, fastmath=True)) * LN_2
    return value if total != 0.0 else -Float32.inf
