"""LLVM IR of vectors of float32 or float64: what `simd_kernel` builds its operations from."""

import math
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

_FEATURES = dict(binding.get_host_cpu_features())
# Bytes a vector register holds: AVX-512, AVX2, else 16 (NEON, and the oldest x86-64).
VECTOR_BYTES = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx2") else 16
# Rows of a register tile: its 2 * TILE_ROWS accumulators must leave room in the register file, of
# 32 registers with AVX-512 and on ARM, of 16 on other x86-64.
TILE_ROWS = 4 if "sse2" in _FEATURES and VECTOR_BYTES < 64 else 8

INDEX = ir.IntType(64)
_LANE = ir.IntType(32)


class Vectors:
    """IR of vectors of one float type: loads, stores, constants and arithmetic."""

    def __init__(self, context: Any, builder: Any, array_type: Any) -> None:
        self.context = context
        self.ir = builder
        self.wide = array_type.dtype == types.float64
        self.scalar = ir.DoubleType() if self.wide else ir.FloatType()
        self.integer = ir.IntType(64 if self.wide else 32)
        self.lanes = VECTOR_BYTES // (8 if self.wide else 4)
        self.vector = ir.VectorType(self.scalar, self.lanes)
        self.integers = ir.VectorType(self.integer, self.lanes)
        self.suffix = f"v{self.lanes}f{64 if self.wide else 32}"

    def data(self, array_type: Any, array: Any) -> Any:
        """Address of the first element of an array value."""
        return self.context.make_array(array_type)(self.context, self.ir, array).data

    def const(self, value: float) -> Any:
        """`value` in every lane."""
        return ir.Constant(self.vector, [ir.Constant(self.scalar, value)] * self.lanes)

    def const_int(self, value: int) -> Any:
        """`value` in every lane of a vector of integers of the same width."""
        return ir.Constant(self.integers, [ir.Constant(self.integer, value)] * self.lanes)

    def splat(self, scalar: Any) -> Any:
        """`scalar` in every lane."""
        hole = ir.Constant(self.vector, ir.Undefined)
        first = self.ir.insert_element(hole, scalar, _LANE(0))
        return self.pick(first, hole, [0] * self.lanes)

    def pick(self, a: Any, b: Any, lanes: list[int]) -> Any:
        """The named lanes of `a`, then (from number `self.lanes` on) of `b`."""
        order = ir.Constant(ir.VectorType(_LANE, self.lanes), [_LANE(lane) for lane in lanes])
        return self.ir.shuffle_vector(a, b, order)

    def exchange(self, a: Any, b: Any, reach: int) -> tuple[Any, Any]:
        """Both vectors with the lanes of `a` at bit `reach` and those of `b` not at it swapped."""
        every = range(self.lanes)
        low = [x + self.lanes - reach if x & reach else x for x in every]
        high = [x + self.lanes if x & reach else x + reach for x in every]
        return self.pick(a, b, low), self.pick(a, b, high)

    def load(self, base: Any, index: Any) -> Any:
        """base[index : index + lanes]; no alignment is assumed beyond that of 4 bytes."""
        pointer = self.ir.bitcast(self.ir.gep(base, [index]), self.vector.as_pointer())
        return self.ir.load(pointer, align=4)

    def store(self, value: Any, base: Any, index: Any) -> None:
        """Write `value` to base[index : index + lanes]."""
        pointer = self.ir.bitcast(self.ir.gep(base, [index]), self.vector.as_pointer())
        self.ir.store(value, pointer, align=4)

    def call(self, name: str, *args: Any) -> Any:
        """The LLVM intrinsic `name` on vectors."""
        kind = ir.FunctionType(self.vector, [arg.type for arg in args])
        insert: Any = cgutils.get_or_insert_function
        function = insert(self.ir.module, kind, f"{name}.{self.suffix}")
        return self.ir.call(function, args)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Fused a * b + c, rounded once."""
        return self.call("llvm.fma", a, b, c)

    def larger(self, a: Any, b: Any) -> Any:
        """The larger of each pair; `b` where either is NaN, as the hardware has it."""
        return self.ir.select(self.ir.fcmp_ordered(">", a, b), a, b)

    def fold(self, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """One scalar out of a vector, halves combined until one lane is left."""
        hole = ir.Constant(self.vector, ir.Undefined)
        half = self.lanes // 2
        while half:
            order = [(lane + half) % self.lanes for lane in range(self.lanes)]
            value = combine(value, self.pick(value, hole, order))
            half //= 2
        return self.ir.extract_element(value, _LANE(0))

    def exp2(self, x: Any) -> Any:
        """2**x within 2 ulp for x <= 0 or a little above; 0 below the normal range; NaN stays NaN.

        2**x = 2**n * 2**f with n the nearest whole number, so |f| <= 1/2, where the Taylor series
        of 2**f reaches full precision in a few terms.
        """
        mantissa, bias, terms = (52, 1023, 13) if self.wide else (23, 127, 7)
        whole = self.call("llvm.rint", x)
        part = self.ir.fsub(x, whole)
        series = self.const(math.log(2) ** terms / math.factorial(terms))
        for power in reversed(range(terms)):
            series = self.fma(
                series, part, self.const(math.log(2) ** power / math.factorial(power))
            )
        limit = float(bias - 1)
        inside = self.ir.select(
            self.ir.fcmp_ordered(">", whole, self.const(-limit)), whole, self.const(-limit)
        )
        inside = self.ir.select(
            self.ir.fcmp_ordered("<", inside, self.const(limit)), inside, self.const(limit)
        )
        exponent = self.ir.add(self.ir.fptosi(inside, self.integers), self.const_int(bias))
        power_of_two = self.ir.bitcast(self.ir.shl(exponent, self.const_int(mantissa)), self.vector)
        tiny = self.ir.fcmp_ordered("<", x, self.const(-limit))
        return self.ir.select(tiny, self.const(0.0), self.ir.fmul(series, power_of_two))

    def loop(
        self, count: Any, step: int, carried: list[Any], body: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """Run `body(index, carried)` for index 0, step, .. below `count`; then what is carried."""
        before = self.ir.block
        inside = self.ir.append_basic_block("loop")
        after = self.ir.append_basic_block("loop_end")
        self.ir.cbranch(self.ir.icmp_signed(">", count, INDEX(0)), inside, after)
        self.ir.position_at_end(inside)
        index = self.ir.phi(INDEX)
        index.add_incoming(INDEX(0), before)
        inner = [self.ir.phi(value.type) for value in carried]
        results = body(index, list(inner))
        following = self.ir.add(index, INDEX(step))
        last = self.ir.block
        index.add_incoming(following, last)
        for phi, value, result in zip(inner, carried, results, strict=True):
            phi.add_incoming(value, before)
            phi.add_incoming(result, last)
        self.ir.cbranch(self.ir.icmp_signed("<", following, count), inside, after)
        self.ir.position_at_end(after)
        outer = [self.ir.phi(value.type) for value in carried]
        for phi, value, result in zip(outer, carried, results, strict=True):
            phi.add_incoming(value, before)
            phi.add_incoming(result, last)
        return outer
