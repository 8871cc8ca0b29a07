"""What host code asks of the tensors it is given; imports neither cutlass nor torch.

Values of tables are trusted: columns inside the sequence, tile ids inside the tiles.
"""

import math
from collections.abc import Mapping
from typing import Any

from kernels_sm100.errors import ConfigError, sentence

VECTOR_BYTES = 16  # of an address, and of a stride that TMA takes


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

    def activation(self, name: str, tensor: Any, shape: tuple[int, ...], dtype: str) -> None:
        """Shape, dtype, and what a tensor map asks of strides and address.

        Args:
            name: of the argument.
            tensor: torch tensor [B, S, H, D].
            shape: it has to have.
            dtype: it has to have, as "bfloat16".

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

    def scale(self, scale: float) -> None:
        """A positive number.

        Raises:
            ConfigError: if it is none.
        """
        if not (math.isfinite(scale) and scale > 0):
            raise self.refuse("scale not available", scale, "a positive number", "negate q instead")

    def ctas(self, ctas: int) -> None:
        """At least one CTA.

        Raises:
            ConfigError: if there is none.
        """
        if ctas < 1:
            raise self.refuse("no CTA", ctas, "at least 1", "pass the GPU's SMs")

    def _laid_out(self, name: str, tensor: Any) -> None:
        if not tensor.is_contiguous() or tensor.data_ptr() % VECTOR_BYTES:
            raise self.refuse(
                f"layout of {name} not available",
                f"strides {tuple(tensor.stride())} at {tensor.data_ptr():#x}",
                "a compact tensor at an address multiple of 16",
                f"pass {name.removeprefix('table ')}.contiguous()",
            )


def dtype_name(tensor: Any) -> str:
    """The name of its dtype, as in bfloat16."""
    return str(tensor.dtype).removeprefix("torch.")
