"""The guards of torch's dispatcher that an operator with its own autograd kernel needs."""

from contextlib import AbstractContextManager
from typing import Any

import torch

_bindings: Any = torch._C  # noqa: SLF001 - the guards have no other name


def below_autograd() -> AbstractContextManager[None]:
    """Inside, operators go past autograd: a call of one's own autograd kernel reaches the rest."""
    guard: AbstractContextManager[None] = _bindings._AutoDispatchBelowAutograd()  # noqa: SLF001
    return guard


def with_autograd() -> AbstractContextManager[None]:
    """Inside, operators meet autograd again, although the caller is below it."""
    key = _bindings.DispatchKey.AutogradFunctionality
    guard: AbstractContextManager[None]
    guard = _bindings._SetExcludeDispatchKeyGuard(key, False)  # noqa: SLF001
    return guard


def in_transform() -> bool:
    """Whether a transform of torch.func is at work."""
    active: bool = _bindings._are_functorch_transforms_active()  # noqa: SLF001
    return active
