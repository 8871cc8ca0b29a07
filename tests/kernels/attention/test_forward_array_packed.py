"""The cases of the forward's covering array whose rows are packed."""

import pytest

from tests.kernels.attention.forward_array import CASES, check, name_of


@pytest.mark.parametrize("case", [c for c in CASES if "packed" in c.heads], ids=name_of)
def test_verify(monkeypatch, case):
    check(monkeypatch, case)
