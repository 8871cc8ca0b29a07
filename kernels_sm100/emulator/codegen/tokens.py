"""Names of value types in generated code: what a 32-lane array holds.

A token is the NumPy kind and size in bytes ("u4", "f4"), with four of our own: "p" is a predicate,
"x2" is `f32x2` (64 floats: lane 0 low, lane 0 high, lane 1 low, ...), "h2" is `f16x2` likewise, and
"c2" is `bf16x2` as raw 16-bit halves. bf16 scalars are raw bits ("u2"): NumPy has no such type.
"""

import numpy as np

LANES = 32
PRED, FLOAT, DOUBLE = "p", "f4", "f8"

TOKEN = {
    "pred": "p",
    **{f"{kind}{8 * size}": f"u{size}" for kind in "ub" for size in (1, 2, 4, 8)},
    **{f"s{8 * size}": f"i{size}" for size in (1, 2, 4, 8)},
    "f16": "f2",
    "f32": "f4",
    "f64": "f8",
    "bf16": "u2",
    "f32x2": "x2",
    "f16x2": "h2",
    "bf16x2": "c2",
}

# NumPy dtype of a token, and bytes a lane takes.
DTYPE = {
    "p": np.dtype(np.bool_),
    **{f"{kind}{size}": np.dtype(f"{kind}{size}") for kind in "ui" for size in (1, 2, 4, 8)},
    **{f"f{size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
    "x2": np.dtype("f4"),
    "h2": np.dtype("f2"),
    "c2": np.dtype("u2"),
}
BYTES = {token: dtype.itemsize for token, dtype in DTYPE.items()} | {"x2": 8, "h2": 4, "c2": 4}

# What a register of a width in bits is kept as.
STORAGE = {0: "p", 8: "u1", 16: "u2", 32: "u4", 64: "u8"}


def unsigned(token: str) -> str:
    """The unsigned token of the same size."""
    return f"u{BYTES[token]}"
