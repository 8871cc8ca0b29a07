"""Vector operations over rows of a tensor that a list of tokens names, as LLVM IR.

Row i is token keys[keys_at + i] of x, which begins at x[base + token * stride]. Whole loops are IR,
since numba counts references to arrays in each call, and a row is only a few vectors. Features
that do not fill a vector are left to the callers, whose functions end in `_rows`.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from maskplan.attention.vectors import INDEX, VECTOR_BYTES, Vectors
from maskplan.jit import kernel


def _row(v: Vectors, keys: Any, at: Any, i: Any, base: Any, stride: Any) -> Any:
    """Where row i begins."""
    token = v.ir.load(v.ir.gep(keys, [v.ir.add(at, i)]))
    return v.ir.add(base, v.ir.mul(v.ir.sext(token, ir.IntType(64)), stride))


@intrinsic
def _dots(_, q, q_at, x, base, stride, keys, keys_at, count, whole, out, out_at):
    """Set out[out_at + i] to the product of q[q_at:] and row i over `whole` features."""

    def build(context, builder, _signature, args):
        v = Vectors(context, builder, out)
        q_data, q_at, x_data, base, stride, tokens, keys_at, count, whole, target, out_at = args
        q_data, x_data, tokens = v.data(q, q_data), v.data(x, x_data), v.data(keys, tokens)
        target = v.data(out, target)

        def row(i, _carried):
            at = _row(v, tokens, keys_at, i, base, stride)

            def step(f, total):
                left = v.load(q_data, builder.add(q_at, f))
                return [v.fma(left, v.load(x_data, builder.add(at, f)), total[0])]

            total = v.fold(v.loop(whole, v.lanes, [v.const(0.0)], step)[0], builder.fadd)
            builder.store(total, builder.gep(target, [builder.add(out_at, i)]))
            return []

        v.loop(count, 1, [], row)
        return context.get_dummy_value()

    index = types.int64
    return types.void(q, index, x, index, index, keys, index, index, index, out, index), build


@intrinsic
def _sums(_, weights, at, x, base, stride, keys, keys_at, count, whole, out, out_at):
    """Add the sum of weights[at + i] * row i to out[out_at:], over `whole` features, in pairs."""

    def build(context, builder, _signature, args):
        v = Vectors(context, builder, out)
        data, at, x_data, base, stride, tokens, keys_at, count, whole, target, out_at = args
        data, x_data, tokens = v.data(weights, data), v.data(x, x_data), v.data(keys, tokens)
        target = v.data(out, target)

        def pair(f, _carried):
            def row(i, sums):
                place = builder.add(_row(v, tokens, keys_at, i, base, stride), f)
                weight = v.splat(builder.load(builder.gep(data, [builder.add(at, i)])))
                return [
                    v.fma(weight, v.load(x_data, builder.add(place, INDEX(j * v.lanes))), sums[j])
                    for j in range(2)
                ]

            sums = v.loop(count, 1, [v.const(0.0), v.const(0.0)], row)
            for j, value in enumerate(sums):
                spot = builder.add(builder.add(out_at, f), INDEX(j * v.lanes))
                v.store(builder.fadd(v.load(target, spot), value), target, spot)
            return []

        v.loop(whole, 2 * v.lanes, [], pair)
        return context.get_dummy_value()

    index = types.int64
    return types.void(weights, index, x, index, index, keys, index, index, index, out, index), build


@intrinsic
def _spread(_, weights, at, row, row_at, x, base, stride, keys, keys_at, count, whole):
    """Add weights[at + i] * row[row_at:] to row i of x, over `whole` features."""

    def build(context, builder, _signature, args):
        v = Vectors(context, builder, x)
        data, at, source, row_at, x_data, base, stride, tokens, keys_at, count, whole = args
        data, source, x_data = v.data(weights, data), v.data(row, source), v.data(x, x_data)
        tokens = v.data(keys, tokens)

        def one(i, _carried):
            place = _row(v, tokens, keys_at, i, base, stride)
            weight = v.splat(builder.load(builder.gep(data, [builder.add(at, i)])))

            def step(f, _nothing):
                spot = builder.add(place, f)
                value = v.load(source, builder.add(row_at, f))
                v.store(v.fma(weight, value, v.load(x_data, spot)), x_data, spot)
                return []

            v.loop(whole, v.lanes, [], step)
            return []

        v.loop(count, 1, [], one)
        return context.get_dummy_value()

    index = types.int64
    return types.void(weights, index, row, index, x, index, index, keys, index, index, index), build


def _moving(*, give: bool) -> Any:
    """An intrinsic: rows of x copied to rows of `near`, or rows of `near` added to rows of x."""

    @intrinsic
    def move(_, x, base, stride, keys, keys_at, count, whole, near, near_at, near_stride):
        def build(context, builder, _signature, args):
            v = Vectors(context, builder, near)
            x_data, base, stride, tokens, keys_at, count, whole, data, near_at, near_stride = args
            x_data, tokens, data = v.data(x, x_data), v.data(keys, tokens), v.data(near, data)

            def one(i, _carried):
                far = _row(v, tokens, keys_at, i, base, stride)
                close = builder.add(near_at, builder.mul(i, near_stride))

                def step(f, _nothing):
                    there, here = builder.add(far, f), builder.add(close, f)
                    if give:
                        total = builder.fadd(v.load(x_data, there), v.load(data, here))
                        v.store(total, x_data, there)
                    else:
                        v.store(v.load(x_data, there), data, here)
                    return []

                v.loop(whole, v.lanes, [], step)
                return []

            v.loop(count, 1, [], one)
            return context.get_dummy_value()

        index = types.int64
        return types.void(x, index, index, keys, index, index, index, near, index, index), build

    return move


_take, _give = _moving(give=False), _moving(give=True)


@kernel
def dot_rows(q, q_at, x, base, stride, keys, keys_at, count, features, out, out_at):
    """Set out[out_at + i] to the product of q[q_at : q_at + features] and row i, i < count."""
    lanes = VECTOR_BYTES // out.itemsize
    whole = features // lanes * lanes
    _dots(q, q_at, x, base, stride, keys, keys_at, count, whole, out, out_at)
    if whole < features:
        for i in range(count):
            at = base + keys[keys_at + i] * stride
            for f in range(whole, features):
                out[out_at + i] += q[q_at + f] * x[at + f]


@kernel
def sum_rows(weights, at, x, base, stride, keys, keys_at, count, features, out, out_at):
    """Add the sum of weights[at + i] * row i over i < count to out[out_at : + features]."""
    width = 2 * VECTOR_BYTES // out.itemsize
    whole = features // width * width
    _sums(weights, at, x, base, stride, keys, keys_at, count, whole, out, out_at)
    for f in range(whole, features):
        total = out.dtype.type(0)
        for i in range(count):
            total += weights[at + i] * x[base + keys[keys_at + i] * stride + f]
        out[out_at + f] += total


@kernel
def spread_rows(weights, at, row, row_at, x, base, stride, keys, keys_at, count, features):
    """Add weights[at + i] * row[row_at : + features] to row i of x, i < count."""
    lanes = VECTOR_BYTES // x.itemsize
    whole = features // lanes * lanes
    _spread(weights, at, row, row_at, x, base, stride, keys, keys_at, count, whole)
    if whole < features:
        for i in range(count):
            place = base + keys[keys_at + i] * stride
            for f in range(whole, features):
                x[place + f] += weights[at + i] * row[row_at + f]


@kernel
def take_rows(x, base, stride, keys, keys_at, count, features, near, near_at, near_stride):
    """Copy row i to near[near_at + i * near_stride :], i < count."""
    lanes = VECTOR_BYTES // near.itemsize
    whole = features // lanes * lanes
    _take(x, base, stride, keys, keys_at, count, whole, near, near_at, near_stride)
    if whole < features:
        for i in range(count):
            at = base + keys[keys_at + i] * stride
            for f in range(whole, features):
                near[near_at + i * near_stride + f] = x[at + f]


@kernel
def give_rows(x, base, stride, keys, keys_at, count, features, near, near_at, near_stride):
    """Add near[near_at + i * near_stride :] to row i of x, i < count."""
    lanes = VECTOR_BYTES // near.itemsize
    whole = features // lanes * lanes
    _give(x, base, stride, keys, keys_at, count, whole, near, near_at, near_stride)
    if whole < features:
        for i in range(count):
            place = base + keys[keys_at + i] * stride
            for f in range(whole, features):
                x[place + f] += near[near_at + i * near_stride + f]


@kernel
def take_panels(x, base, stride, keys, keys_at, count, features, panels, step):
    """Copy row i, as row i of panels `step` apart, the last filled up with zeros."""
    width = 2 * VECTOR_BYTES // panels.itemsize
    for first in range(0, features, width):
        some, out = min(width, features - first), first // width * step
        take_rows(x, base + first, stride, keys, keys_at, count, some, panels, out, width)
        if some < width:
            for i in range(count):
                for f in range(some, width):
                    panels[out + i * width + f] = 0
