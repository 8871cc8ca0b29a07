"""The benchmark's clock on a GPU: what it counts and what it leaves out."""

import time
from functools import partial

import pytest
import torch

from maskplan.bench.clock import CudaClock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.mark.parametrize("host_ms", [0.0, 1.0, 6.0])
def test_host_time_before_a_launch_is_left_out(host_ms):
    """Of 6 ms too, which are longer than the first head start."""
    ones = torch.ones(1000, device="cuda")

    def work():
        time.sleep(host_ms / 1e3)
        ones.add(1)

    clock = CudaClock()
    clock(work)
    assert min(clock(work) for _ in range(3)) < 0.5


def test_time_on_the_gpu_is_counted():
    """Twice the wait is twice the time, whatever the clock rate is."""
    clock = CudaClock()
    once, twice = (
        min(clock(partial(torch.cuda._sleep, cycles)) for _ in range(3))
        for cycles in (2_000_000, 4_000_000)
    )
    assert once > 0.5
    assert twice == pytest.approx(2 * once, rel=0.2)


def test_a_work_that_waits_itself_is_timed_all_the_same():
    ones = torch.ones(1000, device="cuda")
    assert CudaClock()(lambda: ones.sum().item()) > 0
