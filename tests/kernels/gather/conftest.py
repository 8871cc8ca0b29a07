"""Compiled forward kernels over gathered lists, one a configuration and session."""

from tests.kernels.forward.conftest import forward_kernel

__all__ = ["forward_kernel"]
