"""No backward kernel spills a register."""

import pytest

from tests.kernels.backward.configs import ALL
from tests.kernels.forward.cubin import resources

THREADS, REGISTERS = 512, 65536


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_spilled(backward_kernel, name):
    registers, stack = resources(backward_kernel(ALL[name]).compiled.entry.cubin)

    assert stack == 0
    assert registers * THREADS <= REGISTERS
