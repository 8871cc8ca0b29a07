"""Kernels of device plans compile for a GPU; what they compute is judged elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import maskplan

DEVICE = Path(maskplan.__file__).parent / "device"
VARIANTS = {
    "read_lists.cu": [
        "-DINDEX=int -DBLOCK=128 -DWORDS=4 -DCLASSIFY=1",
        "-DINDEX=long -DBLOCK=48 -DWORDS=2 -DCLASSIFY=0",
        "-DINDEX=long -DBLOCK=32 -DWORDS=1 -DCLASSIFY=0",
    ],
    "ranks.cu": ["-DFULL=0", "-DFULL=1"],
    "lists.cu": [f"-DTILES={tiles} -DORDER={min(tiles, 2)}" for tiles in range(4)],
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the other tests run them on the GPU")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled here")
def test_every_triton_kernel_compiles():
    pytest.importorskip("triton")
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "tests.device.compiling"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    written = {
        name
        for path in DEVICE.glob("*_triton.py")
        for name in re.findall(r"def (\w+_kernel)\(", path.read_text())
    }
    assert {line.split()[0] for line in done.stdout.splitlines()} == written


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize(
    ("source", "defines"), [(name, each) for name, all_ in VARIANTS.items() for each in all_]
)
def test_cuda_sources_compile(tmp_path, source, defines):
    assert {path.name for path in DEVICE.glob("*.cu")} == set(VARIANTS)
    command = ["nvcc", "-arch=sm_90", "-std=c++17", *defines.split(), "-cubin"]
    done = subprocess.run(
        [*command, "-o", tmp_path / "out.cubin", DEVICE / source],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
