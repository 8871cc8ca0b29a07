"""What an operator with an autograd kernel of its own asks of torch's dispatcher."""

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


def hooks_allowed() -> bool:
    """Whether saved-tensor hooks, which checkpoints are, may be used; torch.func forbids them."""
    allowed: bool = _bindings._autograd._saved_tensors_hooks_is_enabled()  # noqa: SLF001
    return allowed


def unobserved() -> bool:
    """Whether no transform, no mode and no `torch.jit.trace` looks at the operators called."""
    modes: int = _bindings._len_torch_dispatch_stack() + _bindings._len_torch_function_stack()  # noqa: SLF001
    return modes == 0 and not in_transform() and not _bindings._is_tracing()  # noqa: SLF001


def any_autocast() -> bool:
    """Whether torch.autocast is on for any kind of device."""
    enabled: bool = _bindings._is_any_autocast_enabled()  # noqa: SLF001
    return enabled
