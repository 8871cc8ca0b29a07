"""Literals of PTX: integers in four bases, decimal floats, and floats as hexadecimal bits."""

import re
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_sm100.emulator.codegen.tokens import BYTES, DOUBLE, DTYPE, FLOAT, LANES, PRED, unsigned

Literal = NDArray[Any]  # 32 equal lanes

INTEGER = re.compile(r"(-?)(0[xX][0-9a-fA-F]+|\d+)[uU]?")
HEX_FLOAT = re.compile(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})")
DECIMAL = re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?")


def lanes_of(pattern: int, token: str) -> Literal:
    """32 lanes of a bit pattern, as `token`."""
    value = pattern & ((1 << 8 * BYTES[token]) - 1)
    return np.full(LANES, value, dtype=DTYPE[unsigned(token)]).view(DTYPE[token])


def immediate(operand: str, token: str) -> Literal | None:
    """32 lanes of a literal, or None if it is none."""
    if found := INTEGER.fullmatch(operand):
        value = int(found[2], 8 if re.fullmatch(r"0[0-7]+", found[2]) else 0)
        value = -value if found[1] else value
        if token == PRED:
            return np.full(LANES, value != 0)
        return lanes_of(value, token)
    if found := HEX_FLOAT.fullmatch(operand):
        bits = int(found[1] or found[2], 16)
        if token == DOUBLE and found[1]:
            return np.full(LANES, struct.unpack("<f", struct.pack("<I", bits))[0])
        if token == FLOAT and found[2]:
            double = struct.unpack("<d", struct.pack("<Q", bits))[0]
            return np.full(LANES, double, dtype=np.float32)
        return lanes_of(bits, token)
    if DECIMAL.fullmatch(operand):
        return np.full(LANES, float(operand), DTYPE[token]) if token[0] == "f" else None
    return None
