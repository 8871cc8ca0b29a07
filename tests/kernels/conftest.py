"""Kernels that tests compile are kept for a run of the tests, and for the workers that share it."""

import os

import pytest

from kernels_sm100.launch import CompileCache


@pytest.fixture(scope="session")
def compile_cache(tmp_path_factory) -> CompileCache:
    """One cache for all workers of a run; KERNELS_SM100_CACHE keeps it for the next one."""
    if os.environ.get("KERNELS_SM100_CACHE"):
        return CompileCache()
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    return CompileCache(shared / "kernels_sm100")
