"""Backends compile into the cache of the run."""

import pytest

from maskplan.attention import sm100_kernels


@pytest.fixture(autouse=True)
def _kernels(compile_cache, monkeypatch):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    monkeypatch.setenv("KERNELS_SM100_CACHE", str(compile_cache.directory))
    sm100_kernels.compiled_forward.cache_clear()
