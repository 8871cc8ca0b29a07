"""Without a GPU, the tests beside this one run in a process of their own, in Triton's interpreter.

Triton reads TRITON_INTERPRET when it is first imported, and it stays so for the whole process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="they run on the GPU")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="they run here already")
def test_device_plans_in_the_interpreter():
    pytest.importorskip("triton")
    here = Path(__file__).parent
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-m",
            "not gpu",
            "-p",
            "no:cacheprovider",
            here,
        ],
        cwd=here.parent.parent,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
