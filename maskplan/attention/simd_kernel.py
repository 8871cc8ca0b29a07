"""The vector operations that the CPU engine is made of, as LLVM IR that numba compiles in place.

NOTE [Why not a BLAS]: a sparse row is a chain of small products (128 x 128 x 128) with a softmax
between them. Torch's batched products need the blocks gathered first and push the scores out of the
fastest cache; a BLAS called inside a numba thread starts threads of its own. A register tile
written here runs at the rate of a large dense product, and lets one thread own a row from its
scores to its output.

All operations act on flat arrays of float32 or float64, with offsets and strides in elements. A
vector holds `lanes(dtype)` numbers; a panel is `panel(dtype)` = 2 * lanes columns wide and stored
row after row, so that a product reads it as one stream. Lengths of row operations are multiples of
`lanes`.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from maskplan.attention.vectors import INDEX, TILE_ROWS, VECTOR_BYTES, Vectors
from maskplan.jit import kernel


def panel(dtype: "np.dtype[Any]") -> int:
    """Columns of one panel of `dtype`."""
    return 2 * VECTOR_BYTES // dtype.itemsize


def _register_tile(rows: int, *, add: bool) -> Any:
    """An intrinsic: `rows` rows of A times one panel of B, into C or added to it."""

    @intrinsic
    def tile(_, a, a_at, a_row, a_k, b, b_at, c, c_at, c_row, depth):
        index = types.int64
        kinds = (a, b, c)

        def build(context, builder, _signature, args):
            v = Vectors(context, builder, c)
            a, a_at, a_row, a_k, b, b_at, c_data, c_at, c_row, depth = args
            a, b, c_data = (v.data(*x) for x in zip(kinds, (a, b, c_data), strict=True))
            spots = [
                builder.add(c_at, builder.add(builder.mul(c_row, INDEX(i)), INDEX(j * v.lanes)))
                for i in range(rows)
                for j in range(2)
            ]

            def step(k, sums):
                line = builder.add(b_at, builder.mul(k, INDEX(2 * v.lanes)))
                right = [v.load(b, builder.add(line, INDEX(j * v.lanes))) for j in range(2)]
                column = builder.add(a_at, builder.mul(k, a_k))
                products = []
                for i in range(rows):
                    spot = builder.add(column, builder.mul(a_row, INDEX(i)))
                    left = v.splat(builder.load(builder.gep(a, [spot])))
                    products += [v.fma(left, right[j], sums[2 * i + j]) for j in range(2)]
                return products

            zeros = [v.const(0.0) for _ in spots]
            for spot, value in zip(spots, v.loop(depth, 1, zeros, step), strict=True):
                # C joins last: sums of sums lose less than one long sum that starts from C.
                v.store(builder.fadd(v.load(c_data, spot), value) if add else value, c_data, spot)
            return context.get_dummy_value()

        return types.void(a, index, index, index, b, index, c, index, index, index), build

    return tile


_tile8_set, _tile8_add = _register_tile(8, add=False), _register_tile(8, add=True)
_tile4_set, _tile4_add = _register_tile(4, add=False), _register_tile(4, add=True)
_tile1_set, _tile1_add = _register_tile(1, add=False), _register_tile(1, add=True)


@intrinsic
def row_max(_, row, at, count):
    """Largest of row[at : at + count]; NaN entries are passed over, -inf if there are no others."""

    def build(context, builder, _signature, args):
        v = Vectors(context, builder, row)
        data, at, count = v.data(row, args[0]), args[1], args[2]

        def step(i, best):
            return [v.larger(v.load(data, builder.add(at, i)), best[0])]

        return v.fold(v.loop(count, v.lanes, [v.const(-np.inf)], step)[0], v.larger)

    return row.dtype(row, types.int64, types.int64), build


@intrinsic
def row_exp2(_, row, at, count, scale, shift):
    """Replace each x of row[at : at + count] by 2**(x * scale - shift), and return their sum."""

    def build(context, builder, _signature, args):
        v = Vectors(context, builder, row)
        data, at, count = v.data(row, args[0]), args[1], args[2]
        scale, shift = v.splat(args[3]), v.splat(builder.fneg(args[4]))

        def step(i, total):
            spot = builder.add(at, i)
            value = v.exp2(v.fma(v.load(data, spot), scale, shift))
            v.store(value, data, spot)
            return [builder.fadd(total[0], value)]

        return v.fold(v.loop(count, v.lanes, [v.const(0.0)], step)[0], builder.fadd)

    return row.dtype(row, types.int64, types.int64, row.dtype, row.dtype), build


@intrinsic
def row_scale(_, row, at, count, factor):
    """Multiply row[at : at + count] by `factor`."""

    def build(context, builder, _signature, args):
        v = Vectors(context, builder, row)
        data, at, count, factor = v.data(row, args[0]), args[1], args[2], v.splat(args[3])

        def step(i, _carried):
            spot = builder.add(at, i)
            v.store(builder.fmul(v.load(data, spot), factor), data, spot)
            return []

        v.loop(count, v.lanes, [], step)
        return context.get_dummy_value()

    return types.void(row, types.int64, types.int64, row.dtype), build


@intrinsic
def row_softmax_grad(_, p, p_at, dp, dp_at, count, delta, scale):
    """Replace each dp by p * (dp - delta) * scale: the gradient of the scores before scaling."""

    def build(context, builder, _signature, args):
        v = Vectors(context, builder, dp)
        p_data, p_at, dp_data, dp_at = v.data(p, args[0]), args[1], v.data(dp, args[2]), args[3]
        count, delta, scale = args[4], v.splat(args[5]), v.splat(args[6])

        def step(i, _carried):
            spot = builder.add(dp_at, i)
            centred = builder.fsub(v.load(dp_data, spot), delta)
            weight = builder.fmul(v.load(p_data, builder.add(p_at, i)), scale)
            v.store(builder.fmul(weight, centred), dp_data, spot)
            return []

        v.loop(count, v.lanes, [], step)
        return context.get_dummy_value()

    index = types.int64
    return types.void(p, index, dp, index, index, dp.dtype, dp.dtype), build


@intrinsic
def row_mask(_, row, at, count, bits, bits_at, fill):
    """Replace row[at + i] by `fill` where bit i % 32 of bits[bits_at + i // 32] is 0."""

    def build(context, builder, _signature, args):
        v = Vectors(context, builder, row)
        data, at, count = v.data(row, args[0]), args[1], args[2]
        words, words_at, fill = v.data(bits, args[3]), args[4], v.splat(args[5])
        word_type, some_bits = ir.IntType(32), ir.IntType(v.lanes)
        flags = ir.VectorType(ir.IntType(1), v.lanes)

        def step(i, _carried):
            spot = builder.add(at, i)
            word = builder.gep(words, [builder.add(words_at, builder.lshr(i, INDEX(5)))])
            place = builder.trunc(builder.and_(i, INDEX(31)), word_type)
            keep = builder.trunc(builder.lshr(builder.load(word), place), some_bits)
            kept = builder.select(builder.bitcast(keep, flags), v.load(data, spot), fill)
            v.store(kept, data, spot)
            return []

        v.loop(count, v.lanes, [], step)
        return context.get_dummy_value()

    index = types.int64
    return types.void(row, index, index, bits, index, row.dtype), build


@intrinsic
def row_dot(_, a, at, b, b_at, count):
    """Sum of a[at + i] * b[b_at + i] over i < count."""

    def build(context, builder, _signature, args):
        v = Vectors(context, builder, a)
        left, at, right, b_at = v.data(a, args[0]), args[1], v.data(b, args[2]), args[3]

        def step(i, total):
            x, y = v.load(left, builder.add(at, i)), v.load(right, builder.add(b_at, i))
            return [v.fma(x, y, total[0])]

        return v.fold(v.loop(args[4], v.lanes, [v.const(0.0)], step)[0], builder.fadd)

    index = types.int64
    return a.dtype(a, index, b, index, index), build


@intrinsic
def row_copy(_, source, at, target, target_at, count):
    """target[target_at : target_at + count] = source[at : at + count]."""

    def build(context, builder, _signature, args):
        v = Vectors(context, builder, target)
        data, at, out, out_at = v.data(source, args[0]), args[1], v.data(target, args[2]), args[3]

        def step(i, _carried):
            v.store(v.load(data, builder.add(at, i)), out, builder.add(out_at, i))
            return []

        v.loop(args[4], v.lanes, [], step)
        return context.get_dummy_value()

    index = types.int64
    return types.void(source, index, target, index, index), build


@intrinsic
def transpose_square(_, source, at, stride, target, target_at, target_stride):
    """Store the transpose of a square of `lanes` rows and columns.

    Halves of rows that lie `reach` apart change places, for each power of two below `lanes`.
    """

    def build(context, builder, _signature, args):
        v = Vectors(context, builder, target)
        data, at, stride, out, out_at, out_stride = args
        data, out = v.data(source, data), v.data(target, out)
        rows = [
            v.load(data, builder.add(at, builder.mul(stride, INDEX(i)))) for i in range(v.lanes)
        ]
        reach = 1
        while reach < v.lanes:
            for i in range(v.lanes):
                if not i & reach:
                    rows[i], rows[i + reach] = v.exchange(rows[i], rows[i + reach], reach)
            reach *= 2
        for i, row in enumerate(rows):
            v.store(row, out, builder.add(out_at, builder.mul(out_stride, INDEX(i))))
        return context.get_dummy_value()

    index = types.int64
    return types.void(source, index, index, target, index, index), build


@kernel
def product_set(a, a_at, a_row, a_k, b, b_at, b_panel, c, c_at, c_row, rows, panels, depth):
    """Set C to A B.

    Element (i, k) of A is a[a_at + i * a_row + k * a_k], panel p of B starts at b[b_at + p *
    b_panel], row i of C starts at c[c_at + i * c_row] and is `panels` panels wide.
    """
    width = 2 * VECTOR_BYTES // c.itemsize
    for p in range(panels):
        right, out, i = b_at + p * b_panel, c_at + p * width, 0
        if TILE_ROWS == 8:
            while i + 8 <= rows:
                _tile8_set(
                    a, a_at + i * a_row, a_row, a_k, b, right, c, out + i * c_row, c_row, depth
                )
                i += 8
        while i + 4 <= rows:
            _tile4_set(a, a_at + i * a_row, a_row, a_k, b, right, c, out + i * c_row, c_row, depth)
            i += 4
        while i < rows:
            _tile1_set(a, a_at + i * a_row, a_row, a_k, b, right, c, out + i * c_row, c_row, depth)
            i += 1


@kernel
def product_add(a, a_at, a_row, a_k, b, b_at, b_panel, c, c_at, c_row, rows, panels, depth):
    """Add A B to C, laid out as in `product_set`."""
    width = 2 * VECTOR_BYTES // c.itemsize
    for p in range(panels):
        right, out, i = b_at + p * b_panel, c_at + p * width, 0
        if TILE_ROWS == 8:
            while i + 8 <= rows:
                _tile8_add(
                    a, a_at + i * a_row, a_row, a_k, b, right, c, out + i * c_row, c_row, depth
                )
                i += 8
        while i + 4 <= rows:
            _tile4_add(a, a_at + i * a_row, a_row, a_k, b, right, c, out + i * c_row, c_row, depth)
            i += 4
        while i < rows:
            _tile1_add(a, a_at + i * a_row, a_row, a_k, b, right, c, out + i * c_row, c_row, depth)
            i += 1
