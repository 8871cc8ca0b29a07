"""What host code asks of the tensors it is given; imports neither cutlass nor torch.

Values of tables are trusted: columns inside the sequence, tile ids inside the tiles.
"""

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from kernels_sm100.errors import ConfigError, sentence

_AXES = 4  # of an activation
VECTOR_BYTES = 16  # of an address, and of a stride that TMA takes
LOG2_E = math.log2(math.e)
# What float32 holds without flushing: kernels take scale and scale * LOG2_E in it.
_SMALLEST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127


class Checks:
    """Checks of the arguments of one kernel; each raises a `ConfigError` that names what is wrong.

    Args:
        where: the kernel, in errors.
    """

    def __init__(self, where: str) -> None:
        self.where = where

    def refuse(self, what: str, got: object, wanted: object, remedy: str) -> ConfigError:
        """The error to raise."""
        return ConfigError(
            sentence(what=what, where=self.where, got=got, wanted=wanted, remedy=remedy)
        )

    def rank(self, **tensors: Any) -> None:
        """Tensors of four axes, so that their sizes have names.

        Args:
            **tensors: torch tensors [B, S, H, D], by argument.

        Raises:
            ConfigError: for the first that has not.
        """
        for name, tensor in tensors.items():
            if len(tensor.shape) != _AXES:
                raise self.refuse(
                    f"{name} does not fit",
                    f"{len(tensor.shape)} axes",
                    "[B, S, H, D]",
                    "add missing axes",
                )

    def activation(
        self, name: str, tensor: Any, shape: tuple[int, ...], dtype: str, *, written: bool = False
    ) -> None:
        """Shape, dtype, and what a tensor map asks of strides and address.

        Args:
            name: of the argument.
            tensor: torch tensor [B, S, H, D].
            shape: it has to have.
            dtype: it has to have, as "bfloat16".
            written: whether the kernel writes it, so that no two elements may be one.

        Raises:
            ConfigError: if it has not, or is laid out otherwise.
        """
        if tuple(tensor.shape) != shape or dtype_name(tensor) != dtype:
            raise self.refuse(
                f"{name} does not fit",
                f"{dtype_name(tensor)} {tuple(tensor.shape)}",
                f"{dtype} {shape}",
                "compile for this shape and dtype",
            )
        strides = tensor.stride()
        if written and any(s == 0 and n > 1 for s, n in zip(strides, shape, strict=True)):
            raise self.refuse(
                f"elements of {name} share memory",
                f"strides {tuple(strides)}",
                "an element of its own for everything that is written",
                "allocate it; do not expand it",
            )
        loose = [s for s, n in zip(strides[:-1], shape[:-1], strict=True) if n > 1 and s % 8]
        if strides[-1] != 1 or loose or tensor.data_ptr() % VECTOR_BYTES:
            raise self.refuse(
                f"layout of {name} not available to TMA",
                f"strides {tuple(strides)} at {tensor.data_ptr():#x}",
                "a last stride of 1, others multiples of 8 elements, an address multiple of 16",
                f"pass {name}.contiguous()",
            )

    def compact(self, name: str, tensor: Any, shape: tuple[int, ...], dtype: str) -> None:
        """A tensor of exactly this shape, contiguous at an aligned address.

        Args:
            name: of the argument.
            tensor: torch tensor.
            shape: it has to have.
            dtype: it has to have.

        Raises:
            ConfigError: if it has not.
        """
        if tuple(tensor.shape) != shape or dtype_name(tensor) != dtype:
            raise self.refuse(
                f"{name} does not fit",
                f"{dtype_name(tensor)} {tuple(tensor.shape)}",
                f"{dtype} {shape}",
                "allocate it so",
            )
        self._laid_out(name, tensor)

    def named(self, what: str, given: Mapping[str, Any], names: Iterable[str]) -> None:
        """That nothing is missing.

        Args:
            what: they are, in the singular.
            given: by name; there may be more.
            names: that have to be there.

        Raises:
            ConfigError: for the first that is not.
        """
        for name in names:
            if name not in given:
                raise self.refuse(
                    f"{what} {name} is missing",
                    f"{', '.join(given) or 'none'}",
                    ", ".join(names),
                    "pass all of them by name",
                )

    def table(self, name: str, table: Any, dtype: str, rank: int) -> None:
        """A table of a walk: dtype, number of axes, contiguous at an aligned address.

        Args:
            name: of the table.
            table: torch tensor.
            dtype: it has to have.
            rank: its axes.

        Raises:
            ConfigError: if it has not.
        """
        if dtype_name(table) != dtype or len(table.shape) != rank:
            raise self.refuse(
                f"table {name} does not fit",
                f"{dtype_name(table)} with {len(table.shape)} axes",
                f"{dtype} with {rank}",
                "pass the tables of a lowered plan",
            )
        self._laid_out(f"table {name}", table)

    def sizes(self, sizes: Mapping[str, tuple[object, object]]) -> None:
        """That what each name has is what it should have.

        Args:
            sizes: name -> (got, wanted).

        Raises:
            ConfigError: for the first that differs.
        """
        for name, (got, wanted) in sizes.items():
            if got != wanted:
                raise self.refuse(
                    f"size of {name} does not fit", got, wanted, "lower the plan again"
                )

    def heads(self, heads: int, kv_heads: int, group: int) -> None:
        """That each KV head has as many query heads as the kernel was compiled for.

        Raises:
            ConfigError: if not.
        """
        if heads != kv_heads * group:
            raise self.refuse(
                "heads do not fit",
                f"{heads} query and {kv_heads} KV heads",
                f"{group} query heads per KV head",
                "compile for this group",
            )

    def pattern(self, pattern_id: Any, batch: int, heads: tuple[int, ...]) -> None:
        """That a plan's batches and heads are those of the tensors, or shared by them.

        Args:
            pattern_id: torch tensor [PB, PH].
            batch: of q, k, v.
            heads: that a plan may have.

        Raises:
            ConfigError: if not.
        """
        batches, plan_heads = pattern_id.shape
        if batches not in (1, batch) or plan_heads not in heads:
            some = ", ".join(map(str, sorted(set(heads))[:-1]))
            raise self.refuse(
                "pattern_id does not fit",
                f"{batches} batches, {plan_heads} heads",
                f"1 or {batch} batches, {some} or {max(heads)} heads",
                "expand or share the plan's heads",
            )

    def scale(self, scale: object) -> None:
        """A positive number that is one in float32 too, and so is its product with log2(e).

        Raises:
            ConfigError: if it is none.
        """
        value = _number(scale)
        if not 0 < value < math.inf:  # not so of NaN
            raise self.refuse("scale not available", scale, "a positive number", "negate q instead")
        if not _SMALLEST <= value <= _LARGEST / LOG2_E:
            raise self.refuse(
                "scale not available",
                scale,
                f"{_SMALLEST:.1e} to {_LARGEST / LOG2_E:.1e}, as float32 holds it",
                "scale q before",
            )

    def factor(self, scale: object) -> None:
        """A number of any sign that is finite in float32.

        Raises:
            ConfigError: if it is none.
        """
        if not abs(_number(scale)) <= _LARGEST:  # not so of NaN
            raise self.refuse("scale not available", scale, "a finite number", "scale by a number")

    def ctas(self, ctas: object) -> None:
        """At least one CTA.

        Raises:
            ConfigError: if there is none.
        """
        if not isinstance(ctas, Integral) or ctas < 1:
            raise self.refuse("no CTA", ctas, "at least 1", "pass the GPU's SMs")

    def _laid_out(self, name: str, tensor: Any) -> None:
        if not tensor.is_contiguous() or tensor.data_ptr() % VECTOR_BYTES:
            raise self.refuse(
                f"layout of {name} not available",
                f"strides {tuple(tensor.stride())} at {tensor.data_ptr():#x}",
                "a compact tensor at an address multiple of 16",
                f"pass {name.removeprefix('table ')}.contiguous()",
            )


def _number(value: object) -> float:
    """`value` as a float, NaN if it is no number."""
    return float(value) if isinstance(value, Real) else math.nan


def dtype_name(tensor: Any) -> str:
    """The name of its dtype, as in bfloat16."""
    return str(tensor.dtype).removeprefix("torch.")
