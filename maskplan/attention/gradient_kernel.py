"""The CPU backward on one tile of scores: five products, whichever side owns the loop around it."""

from typing import Any, NamedTuple

import numpy as np

from maskplan.attention.block_kernel import SCORE_STRIDE, product_add_kept, score
from maskplan.attention.operands import Rows
from maskplan.attention.simd_kernel import (
    product_add,
    product_set,
    row_exp2,
    row_mask,
    row_softmax_grad,
)
from maskplan.attention.vectors import VECTOR_BYTES
from maskplan.jit import kernel


class QuerySide(NamedTuple):
    """Up to TILE queries: what the products read of them, and where their gradient goes.

    Attributes:
        q, dout: `Rows` of D and of DV numbers.
        q_panels, dout_panels: `Panels` over the features of the same.
        lse: exponents of 2 that normalise a row, from `lse_at` on; -inf for a row without keys.
        delta: rowsum(out * dout) - dlse, from `lse_at` on.
        dq: `Rows`, whole panels wide, added to.
    """

    q: Any
    dout: Any
    q_panels: Any
    dout_panels: Any
    lse: Any
    delta: Any
    lse_at: int
    dq: Any


class KeySide(NamedTuple):
    """Up to TILE keys: what the products read of them, and where their gradients go.

    Attributes:
        k_columns, v_columns: `Panels` with keys as columns.
        k_panels: `Panels` over the features of the keys.
        dk, dv: `Rows`, whole panels wide, added to.
    """

    k_columns: Any
    v_columns: Any
    k_panels: Any
    dk: Any
    dv: Any


@kernel
def scratch(rows, features, like):
    """`Rows` of zeros in the dtype of `like`, whole panels wide."""
    width = 2 * VECTOR_BYTES // like.itemsize
    stride = (features + width - 1) // width * width
    return Rows(np.zeros(rows * stride, like.dtype), 0, stride)


@kernel
def attend_grad(query, key, rows, count, features, bits, masked, unsafe, weights, grads, scale):
    """Add the gradients that `count` keys and `rows` queries give each other.

    P = exp(S - lse), dV += P^T dO, dS = P * (dO V^T - delta) * scale, dQ += dS K, dK += dS^T Q.

    Args:
        query, key: `QuerySide`, `KeySide`.
        features: (D, DV).
        weights, grads: work space, TILE * SCORE_STRIDE each.
    """
    width = 2 * VECTOR_BYTES // weights.itemsize
    panels = (count + width - 1) // width
    span = panels * width
    zero = weights.dtype.type(0)
    factor = score(query.q, key.k_columns, rows, count, features[0], weights, bits, masked, scale)
    product_set(
        query.dout.data, query.dout.start, query.dout.stride, 1,
        key.v_columns.data, key.v_columns.start, key.v_columns.step,
        grads, 0, SCORE_STRIDE, rows, panels, features[1],
    )  # fmt: skip
    for r in range(rows):
        at = r * SCORE_STRIDE
        lse = query.lse[query.lse_at + r]
        if lse == -np.inf:
            weights[at : at + span] = zero
        else:
            row_exp2(weights, at, span, factor, lse)
        row_softmax_grad(
            weights, at, grads, at, span, query.delta[query.lse_at + r], weights.dtype.type(scale)
        )
        if masked:
            # The scores were -inf there, but a NaN in the row's lse or delta reaches every column.
            row_mask(weights, at, span, bits.data, bits.start + r * bits.stride, zero)
            row_mask(grads, at, span, bits.data, bits.start + r * bits.stride, zero)
    if masked and unsafe:
        product_add_kept(
            weights, 1, SCORE_STRIDE, query.dout_panels, key.dv, count,
            key.dv.stride // width, rows, bits, True,
        )  # fmt: skip
        product_add_kept(
            grads, 1, SCORE_STRIDE, query.q_panels, key.dk, count,
            key.dk.stride // width, rows, bits, True,
        )  # fmt: skip
        product_add_kept(
            grads, SCORE_STRIDE, 1, key.k_panels, query.dq, rows,
            query.dq.stride // width, count, bits, False,
        )  # fmt: skip
        return
    product_add(
        weights, 0, 1, SCORE_STRIDE,
        query.dout_panels.data, query.dout_panels.start, query.dout_panels.step,
        key.dv.data, key.dv.start, key.dv.stride, count, key.dv.stride // width, rows,
    )  # fmt: skip
    product_add(
        grads, 0, 1, SCORE_STRIDE,
        query.q_panels.data, query.q_panels.start, query.q_panels.step,
        key.dk.data, key.dk.start, key.dk.stride, count, key.dk.stride // width, rows,
    )  # fmt: skip
    product_add(
        grads, 0, SCORE_STRIDE, 1,
        key.k_panels.data, key.k_panels.start, key.k_panels.step,
        query.dq.data, query.dq.start, query.dq.stride, rows, query.dq.stride // width, count,
    )  # fmt: skip
