"""The cases of the backward's covering array that LoopQ runs."""

import pytest

from tests.kernels.attention.backward_array import CASES, check
from tests.kernels.attention.forward_array import name_of


@pytest.mark.parametrize("case", [c for c in CASES if c.direction == "loop_q"], ids=name_of)
def test_verify(monkeypatch, case):
    check(monkeypatch, case)
