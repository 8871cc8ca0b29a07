"""What `from_topk` refuses on a device, in the CPU's words where the CPU refuses it too."""

import pytest
import torch

import maskplan as mp
from maskplan.errors import MaskplanError, PlanError
from tests.device.planning import on_the_cpu

# Arguments of BlockSparseTensors.from_topk, of lists [1, 2, 6, 8] and 64 keys.
REFUSED = [
    {"width": 0},
    {"width": True},
    {"width": "wide"},
    {"width": 4.0},
    {"width": torch.tensor(4.5)},
    {"width": None},
    {"direction": "loop_q"},
    {"target": mp.target("sm90", head_dim=128)},
    {"target": "sm100"},
    {"target": "sm90", "direction": "loop_k", "block_size": (64, 16)},
    {"target": "fa4"},
    {"target": 3},
    {"whole": "no"},
    {"whole": None},
    {"rows": "block"},
    {"unit": "page"},
    {"base": None},
    {"seqlen_q": 7},
    {"block_size": 128},
    {"indices": torch.zeros(1, 2, 6, 8)},
    {"indices": torch.zeros(1, 2, 6, dtype=torch.int32)},
    {"indices": torch.zeros(1, 0, 6, 8, dtype=torch.int32)},
]


@pytest.mark.parametrize("given", REFUSED)
def test_lists_are_refused_as_on_the_cpu(place, given):
    options = {"block_size": (2, 16), "width": "dense", **given}
    indices = options.pop("indices", torch.zeros(1, 2, 6, 8, dtype=torch.int32))
    make = mp.BlockSparseTensors.from_topk
    with pytest.raises(MaskplanError) as caught:
        make(indices.to(place), 64, **options)
    with on_the_cpu(), pytest.raises(MaskplanError) as wanted:
        make(indices, 64, **options)

    assert type(caught.value) is type(wanted.value)
    assert str(caught.value) == str(wanted.value)


def test_no_heads_are_refused_as_on_the_cpu(place):
    with pytest.raises(PlanError, match="no heads to plan in indices"):
        mp.from_topk(torch.zeros(0, 1, 4, 2, dtype=torch.int32, device=place), 8)


@pytest.mark.parametrize("make", [mp.from_topk, mp.BlockSparseTensors.from_topk])
def test_tiles_beyond_32_bit_numbers_are_refused_with_what_helps(place, make):
    """A tile has a place for each (line, block), whatever `capacity` is."""
    indices = torch.zeros(1, 1, 1, 1, dtype=torch.int32, device=place).expand(1, 1, 40_000, 1)
    options = {"width": 4} if make is not mp.from_topk else {"capacity": 4}
    with pytest.raises(PlanError) as caught:
        make(indices, 60_000, block_size=(1, 1), **options)

    assert str(caught.value) == (
        "too many blocks for one plan in from_topk: got room for 2400000000, wanted at most "
        "2147483647; say whole=True if every listed block is full, use larger blocks, or plan "
        "fewer heads at a time."
    )
