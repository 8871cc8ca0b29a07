"""Compiled kernels over gathered lists, one a configuration and session."""

import pytest

from tests.kernels.forward.conftest import forward_kernel

__all__ = ["forward_kernel", "gathered_loopk"]


@pytest.fixture(scope="session")
def gathered_loopk(compile_cache):
    """config -> GatheredBackward, compiled once."""
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from tests.kernels.gather.backward import GatheredBackward

    made = {}

    def get(config):
        if config not in made:
            made[config] = GatheredBackward(config, compile_cache)
        return made[config]

    return get
