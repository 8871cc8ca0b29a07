"""Kernels of the fa4 backend compile, forward and backward, with no GPU at hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from maskplan.attention import fa4_kernels

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(fa4_kernels.missing() is not None, reason=str(fa4_kernels.missing()))
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_kernels_compile(arch):
    """In a process of its own: the architecture is taken from the environment, once.

    The program compiles more kinds, which take a minute or two: run it after a change to them.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.attention.fa4_compilation", arch, "bits"],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=900,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["compiled", arch, "bits"]
