"""Lengths and block sizes of a plan, as one value.

Axis names used throughout: B batch, HQ query heads, HK KV heads, G = HQ / HK, SQ and SK the query
and key lengths in tokens, (bq, bk) the block size in tokens, M = ceil(SQ / bq), N = ceil(SK / bk).
"""

import operator
from dataclasses import dataclass
from typing import SupportsFloat, SupportsIndex

import numpy as np

from maskplan.errors import PlanError, PlanTypeError, sentence

# Block indices are 32-bit in every kernel that walks them, and a token index must fit as well.
MAX_SEQLEN = 2**31 - 1
WORD_BITS = 32
# A block's bits are made at once: 64 MiB of them, far beyond any kernel's tile.
MAX_BLOCK_PAIRS = 2**29


def integer(value: SupportsIndex, name: str, *, low: int = 0, high: int = MAX_SEQLEN) -> int:
    """`value` as an int in [low, high].

    Raises:
        PlanTypeError: if it is not an integer (a bool or a float is not).
        PlanError: if it lies outside.
    """
    try:
        number = operator.index(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError as error:  # arrays and tensors have __index__, whatever they hold
        raise PlanTypeError(
            sentence(
                what="argument is not an integer",
                where=name,
                got=f"{value!r:.80} of type {type(value).__name__}",
                wanted="an int",
                remedy="pass a whole number",
            )
        ) from error
    if not low <= number <= high:
        raise PlanError(
            sentence(
                what="argument out of range",
                where=name,
                got=number,
                wanted=f"{low} <= {name} <= {high}",
                remedy=f"pass a {name} inside that range",
            )
        )
    return number


def number(value: SupportsFloat, name: str) -> float:
    """`value` as a float, which may be infinite or NaN: callers say which range they want.

    Raises:
        PlanTypeError: if it is not a number (a bool or text is not), or too large for a float.
    """
    try:
        # float() would read text, and take a bool for 0 or 1.
        return float(None if isinstance(value, (bool, str, bytes)) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise PlanTypeError(
            sentence(
                what="argument is not a number",
                where=name,
                got=f"{value!r:.80} of type {type(value).__name__}",
                wanted="a float",
                remedy="pass one number",
            )
        ) from error


def flag(value: object, name: str) -> bool:
    """`value` as a bool, which NumPy's is too; what is true in a condition ("no", 1) is none.

    Raises:
        PlanTypeError: if it is not one.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise PlanTypeError(
            sentence(
                what="argument is no flag",
                where=name,
                got=f"{value!r:.80} of type {type(value).__name__}",
                wanted="True or False",
                remedy="pass one of these",
            )
        )
    return bool(value)


def option(value: str, name: str, options: tuple[str, ...]) -> None:
    """Refuse a `value` that is none of the options.

    Raises:
        PlanTypeError: if it is none.
    """
    if value not in options:
        raise PlanTypeError(
            sentence(
                what="unknown option",
                where=name,
                got=repr(value),
                wanted=" or ".join(map(repr, options)),
                remedy="pass one of these",
            )
        )


def block_pair(block_size: tuple[int, int], name: str = "block_size") -> tuple[int, int]:
    """`block_size` as (bq, bk), both at least 1.

    Raises:
        PlanTypeError: if it is not a pair of integers.
        PlanError: if one of them is below 1, or a block holds more than 2**29 pairs.
    """
    pair = tuple(block_size) if isinstance(block_size, (tuple, list)) else (block_size,)
    if len(pair) != 2:
        raise PlanTypeError(
            sentence(
                what="block size is not a pair",
                where=name,
                got=repr(block_size),
                wanted="(tokens per Q block, tokens per KV block)",
                remedy=f"pass {name}=(128, 128), say",
            )
        )
    block_q, block_k = (integer(side, f"{name}[{i}]", low=1) for i, side in enumerate(pair))
    if block_q * block_k > MAX_BLOCK_PAIRS:
        raise PlanError(
            sentence(
                what="block too large",
                where=name,
                got=f"{block_q} x {block_k} tokens, {block_q * block_k} pairs",
                wanted=f"at most {MAX_BLOCK_PAIRS} pairs a block",
                remedy="use smaller blocks: plans are exact in any size",
            )
        )
    return block_q, block_k


@dataclass(frozen=True, slots=True)
class Axes:
    """One matrix of blocks, seen from its rows: queries by keys, or keys by queries.

    Fields count tokens; `rows`, `cols` count blocks; `words` is 32-bit words per row of a bit tile.
    """

    row_len: int
    col_len: int
    row_block: int
    col_block: int

    @property
    def rows(self) -> int:
        """Blocks down."""
        return -(-self.row_len // self.row_block)

    @property
    def cols(self) -> int:
        """Blocks across."""
        return -(-self.col_len // self.col_block)

    @property
    def words(self) -> int:
        """Words of 32 bits that hold one row of a block."""
        return -(-self.col_block // WORD_BITS)

    @property
    def transposed(self) -> "Axes":
        """The same blocks seen from the columns."""
        return Axes(self.col_len, self.row_len, self.col_block, self.row_block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Query and key lengths in tokens, and the block size (bq, bk) in tokens.

    Raises:
        PlanTypeError: if a field is not an integer.
        PlanError: if a length is negative, a block size below 1, or either beyond 2**31 - 1.
    """

    seqlen_q: int
    seqlen_k: int
    block_size: tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "seqlen_q", integer(self.seqlen_q, "seqlen_q"))
        object.__setattr__(self, "seqlen_k", integer(self.seqlen_k, "seqlen_k"))
        object.__setattr__(self, "block_size", block_pair(self.block_size))

    @property
    def num_q_blocks(self) -> int:
        """M = ceil(SQ / bq)."""
        return -(-self.seqlen_q // self.block_size[0])

    @property
    def num_k_blocks(self) -> int:
        """N = ceil(SK / bk)."""
        return -(-self.seqlen_k // self.block_size[1])

    @property
    def axes(self) -> Axes:
        """Rows are queries, columns are keys."""
        return Axes(self.seqlen_q, self.seqlen_k, *self.block_size)

    def __str__(self) -> str:
        bq, bk = self.block_size
        return f"{self.seqlen_q} x {self.seqlen_k} tokens in blocks of {bq} x {bk}"
