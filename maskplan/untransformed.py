"""Planning and lowering in the middle of a transform of torch.func.

NOTE [Transforms and tables]: while `torch.func.grad` or `vmap` runs, it wraps what operations make,
integers too: NumPy cannot read a wrapped tensor, and one that a cache kept would outlive its
transform. Plans and their tables are no part of what is differentiated, so they are made outside,
of the values of what was wrapped for a gradient. A vmapped tensor has no one value: it is refused.
Functions of the caller's run inside, since they may have captured wrapped tensors, which outside
would be taken for those of another transform.
"""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar, overload

import torch
from torch import Tensor

from maskplan.errors import UnsupportedError, sentence

_P = ParamSpec("_P")
_R = TypeVar("_R")
_left: ContextVar[list[Any]] = ContextVar("transforms that were left", default=[])  # noqa: B039 - only read
_bindings: Any = torch._C  # noqa: SLF001 - nothing else says it


def untransformed(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, run outside of all transforms; see NOTE [Transforms and tables].

    Raises:
        UnsupportedError: if one of its arguments is a tensor that is vmapped.
    """

    @wraps(function)
    def outside(*given: _P.args, **named: _P.kwargs) -> _R:
        if not _bindings._are_functorch_transforms_active():  # noqa: SLF001
            return function(*given, **named)
        from torch._functorch import pyfunctorch

        where = function.__name__
        values: Any = tuple(plain(value, where) for value in given)
        by_name: Any = {name: plain(value, where) for name, value in named.items()}
        with pyfunctorch.temporarily_clear_interpreter_stack() as left:
            token = _left.set(left)
            try:
                return function(*values, **by_name)
            finally:
                _left.reset(token)

    return outside


def transformed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function`, run in the transforms that `untransformed` left, and its result without them.

    Raises:
        UnsupportedError: from the result, if that is vmapped.
    """

    @wraps(function)
    def inside(*given: Tensor) -> Tensor:
        left = _left.get()
        if not left:
            return function(*given)
        from torch._functorch import pyfunctorch

        with pyfunctorch.temporarily_restore_interpreter_stack(left):
            result = function(*given)
        return plain(result, "a mask function")

    return inside


@overload
def plain(given: Tensor, where: str) -> Tensor: ...


@overload
def plain(given: object, where: str) -> object: ...


def plain(given: object, where: str) -> object:
    """`given`, or what a gradient wrapped: a tensor, or those in a list or tuple.

    Raises:
        UnsupportedError: if a tensor is vmapped.
    """
    if type(given) in (list, tuple):
        return type(given)(plain(part, where) for part in given)  # type: ignore[call-arg,attr-defined]
    wrapped = _bindings._functorch  # noqa: SLF001
    while isinstance(given, Tensor) and wrapped.is_functorch_wrapped_tensor(given):
        if not wrapped.is_gradtrackingtensor(given):
            kind = "vmapped" if wrapped.is_batchedtensor(given) else "functionalized"
            raise UnsupportedError(
                sentence(
                    what="transform is not supported",
                    where=where,
                    got=f"a {kind} tensor",
                    wanted="one value, as a plan serves all of an axis",
                    remedy="make the plan outside of the transform, or pass in_dims=None for it",
                )
            )
        given = wrapped.get_unwrapped(given)
    return given
