"""Compiled forward kernels, one a configuration and session."""

import pytest


@pytest.fixture(scope="session")
def forward_kernel(compile_cache):
    """config -> ForwardKernel, compiled once."""
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from tests.kernels.forward.run import ForwardKernel

    made = {}

    def get(config):
        if config not in made:
            made[config] = ForwardKernel(config, compile_cache)
        return made[config]

    return get
