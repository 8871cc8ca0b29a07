"""Compiled backward kernels, one a configuration and session."""

import pytest


@pytest.fixture(scope="session")
def backward_kernel(compile_cache):
    """config -> BackwardKernel, compiled once."""
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from tests.kernels.backward.run import BackwardKernel

    made = {}

    def get(config):
        if config not in made:
            made[config] = BackwardKernel(config, compile_cache)
        return made[config]

    return get
