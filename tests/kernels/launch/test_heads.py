"""Heads are repeated by view."""

import pytest
import torch

from kernels_sm100.errors import ConfigError
from kernels_sm100.launch import expand_heads


@pytest.mark.parametrize(("found", "wanted"), [(1, 8), (2, 8), (8, 8), (1, 1), (4, 8)])
def test_each_head_of_a_group_sees_its_own(found, wanted):
    tensor = torch.arange(3 * found * 5).view(3, found, 5)
    view = expand_heads(tensor, wanted)

    assert view.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    flat = view.reshape(3, wanted, 5)
    for head in range(wanted):
        assert torch.equal(flat[:, head], tensor[:, head // (wanted // found)])


def test_another_axis():
    tensor = torch.arange(6).view(2, 3, 1)

    assert expand_heads(tensor, 4, axis=2).shape == (2, 3, 4)
    assert expand_heads(tensor, 6, axis=1).shape == (2, 3, 2, 1)


def test_eight_heads_do_not_serve_three():
    with pytest.raises(ConfigError) as raised:
        expand_heads(torch.zeros(1, 3), 8)
    assert str(raised.value) == (
        "heads do not divide in expand_heads: got 3 heads for 8, wanted a divisor of 8; pass one "
        "head, one per KV head, or one per query head."
    )
