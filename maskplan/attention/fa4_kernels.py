"""flash-attn-4, imported when it is needed: which version, for which GPU, and its two functions."""

import os
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

VERSION = "4.0.0b36"  # its contract is private, so exactly this one
ARCHITECTURES = {(9, 0): "sm90", (10, 0): "sm100", (10, 3): "sm100"}


@lru_cache
def missing() -> str | None:
    """Why flash-attn-4 cannot be used; None if it can."""
    try:
        found = version("flash-attn-4")
    except PackageNotFoundError:
        return f"flash-attn-4 is not installed: pip install maskplan[fa4] brings {VERSION}"
    if found != VERSION:
        return f"flash-attn-4 {found} is installed, and {VERSION} alone is known to be right"
    if find_spec("cutlass") is None:
        return "nvidia-cutlass-dsl, which flash-attn-4 compiles with, is not installed"
    return None


def architecture(device: torch.device) -> str | None:
    """The target's name of a GPU; None where flash-attn-4 has no block-sparse kernels."""
    capability = _capability(device.index if device.index is not None else -1)
    return ARCHITECTURES.get(capability)


@lru_cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(None if index < 0 else index)


@lru_cache
def overridden() -> str | None:
    """What would make flash-attn-4 choose kernels for another GPU than the one at hand, or None."""
    name = "FLASH_ATTENTION_ARCH"
    return f"{name}={os.environ[name]} is set" if name in os.environ else None


@lru_cache
def interface() -> Any:
    """flash-attn-4's module with `_flash_attn_fwd` and `_flash_attn_bwd`."""
    from flash_attn.cute import interface as module

    return module


@lru_cache
def masks() -> ModuleType:
    """The mask functions of maskplan, in CuTe code."""
    from maskplan.attention import fa4_mask

    return fa4_mask


@lru_cache
def list_type() -> Any:
    """flash-attn-4's named tuple of block lists."""
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    return BlockSparseTensorsTorch
