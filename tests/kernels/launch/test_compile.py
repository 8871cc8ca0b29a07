"""A kernel is compiled once; what is not there is named."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels_sm100.errors import UnavailableError
from kernels_sm100.launch import CompileCache, compile_kernel
from kernels_sm100.launch.compile import check_device

ROOT = Path(__file__).parents[3]


def test_the_import_loads_no_compiler():
    work = "import kernels_sm100.launch, sys; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", work], capture_output=True, text=True, cwd=ROOT, check=True
    )

    assert not {"cutlass", "tvm_ffi", "torch", "llvmlite"} & set(done.stdout.split())


def test_code_is_compiled_once_a_configuration(tmp_path):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from tests.kernels.tutorial import elementwise

    cache = CompileCache(tmp_path)
    calls = []

    def build(config):
        calls.append(config)
        return elementwise.build(config)

    first = compile_kernel(build, elementwise.ScaleConfig(), cache=cache)
    second = compile_kernel(build, elementwise.ScaleConfig(), cache=cache)
    third = compile_kernel(build, elementwise.ScaleConfig(threads=64), cache=cache)

    assert [first.cached, second.cached, third.cached] == [False, True, False]
    assert len(calls) == 2
    assert first.entry == second.entry != third.entry
    assert ".target sm_100a" in first.ptx
    assert "elementwise.py" in first.ptx  # line information
    assert first.entry.names == ("x", "y", "stream")
    assert first.entry.cubin[:4] == b"\x7fELF"


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_no_device_is_said():
    with pytest.raises(UnavailableError) as raised:
        check_device("sm_100a")
    assert str(raised.value) == (
        "no CUDA device in kernels_sm100.launch: got torch.cuda.is_available() == False, wanted a "
        "GPU that runs sm_100a; use the backend sm100-emulated for small shapes, or cpu."
    )


def test_another_device_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))

    check_device("sm_90a")
    with pytest.raises(UnavailableError) as raised:
        check_device("sm_103a")
    assert str(raised.value) == (
        "this GPU does not run the kernel in kernels_sm100.launch: got NVIDIA H200, compute "
        "capability 9.0, wanted compute capability 10.3 for sm_103a; compile for the architecture "
        "of the GPU, or use another backend."
    )
