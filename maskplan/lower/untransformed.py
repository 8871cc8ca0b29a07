"""Lowering in the middle of a transform of torch.func.

NOTE [Transforms and tables]: while `torch.func.grad` or `vmap` runs, it wraps what operations make,
integers too: NumPy cannot read a wrapped tensor, and one that a cache kept would outlive its
transform. A plan's tables are no part of what is differentiated, so they are made outside.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")
_bindings: Any = torch._C  # noqa: SLF001 - nothing else says it


def untransformed(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, run outside of all transforms; see NOTE [Transforms and tables]."""

    @wraps(function)
    def outside(*given: _P.args, **named: _P.kwargs) -> _R:
        with _outside():
            return function(*given, **named)

    return outside


def _outside() -> AbstractContextManager[Any]:
    if not _bindings._are_functorch_transforms_active():  # noqa: SLF001
        return nullcontext()
    from torch._functorch import pyfunctorch

    outside: AbstractContextManager[Any] = pyfunctorch.temporarily_clear_interpreter_stack()
    return outside
