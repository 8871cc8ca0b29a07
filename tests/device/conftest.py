"""Where the tests of device plans run: on a GPU, or in Triton's interpreter on the CPU.

In the interpreter the same public calls take the same paths: `on_gpu` is made to say yes.
"""

import os

import pytest
import torch

from tests.device.planning import DISPATCHERS

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_PLACERS = ("maskplan.build.closed_forms.gpu", "maskplan.patterns.sliding_tile.gpu")


@pytest.fixture
def place(monkeypatch) -> torch.device:
    """The device that plans are made on."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if not INTERPRETED:
        pytest.skip("no CUDA device, and TRITON_INTERPRET is not 1")
    pytest.importorskip("triton")
    from tests.device.interpreter import make_it_work

    make_it_work()
    for name in DISPATCHERS:
        monkeypatch.setattr(f"{name}.on_gpu", lambda tensor: True)  # noqa: ARG005
    for name in _PLACERS:
        monkeypatch.setattr(name, lambda device: device)
    return torch.device("cpu")
