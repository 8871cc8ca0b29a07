"""Plans as MagiAttention's slices: exact, none twice, short where they can be."""

import time

import pytest
import torch
from hypothesis import given

import maskplan as mp
from maskplan.interop import magi
from tests.handmade import plan_of
from tests.strategies import plans


def covered(ranges: magi.MagiRanges, shape: tuple[int, int]) -> torch.Tensor:
    """How many slices keep each pair, by MagiAttention's definition of the four kinds."""
    count = torch.zeros(shape, dtype=torch.int64)
    for (q0, q1), (k0, k1), kind in zip(
        ranges.q_ranges.tolist(),
        ranges.k_ranges.tolist(),
        ranges.attn_type_map.tolist(),
        strict=True,
    ):
        for q in range(q0, q1):
            for k in range(k0, k1):
                below = k - k1 <= q - q1 or kind in (0, 2)
                above = k - k0 >= q - q0 or kind in (0, 1)
                count[q, k] += below and above
    return count


@given(plans(heads=(1, 1)))
def test_every_kept_pair_is_in_one_slice(plan):
    ranges = magi.to_ranges(plan)

    assert torch.equal(
        covered(ranges, (plan.seqlen_q, plan.seqlen_k)), plan.to_dense()[0, 0].long()
    )
    again = mp.from_ranges(
        ranges.q_ranges,
        ranges.k_ranges,
        ranges.attn_type_map,
        plan.seqlen_q,
        plan.seqlen_k,
        block_size=plan.block_size,
    )
    assert again == plan


@pytest.mark.parametrize(
    ("plan", "rows"),
    [
        (mp.full(300, 200), [[0, 300, 0, 200, 0]]),
        (mp.causal(300, 300), [[0, 300, 0, 300, 1]]),
        (mp.causal(300, 400, align="bottom_right"), [[0, 300, 0, 400, 1]]),
        (
            mp.documents([100, 0, 60], causal=True, block_size=(32, 32)),
            [[0, 100, 0, 100, 1], [100, 160, 100, 160, 1]],
        ),
        (mp.from_ranges([[3, 90]], [[5, 70]], "full", 100, 100), [[3, 90, 5, 70, 0]]),
        (mp.from_ranges([[0, 60]], [[0, 60]], "inverse_causal", 64, 64), [[0, 60, 0, 60, 2]]),
        (mp.from_ranges([[0, 50]], [[0, 60]], "bi_causal", 64, 64), [[0, 50, 0, 60, 3]]),
    ],
)
def test_what_is_one_slice_comes_back_as_one(plan, rows):
    ranges = magi.to_ranges(plan)
    parts = (ranges.q_ranges, ranges.k_ranges, ranges.attn_type_map[:, None])

    assert torch.cat(parts, dim=1).tolist() == rows


def test_long_plans_take_moments():
    plan = mp.video.sliding_tile(mp.video.Grid(30, 48, 80), window=(3, 3, 3))
    start = time.perf_counter()
    ranges = magi.to_ranges(plan)

    assert time.perf_counter() - start < 10  # seconds: a guard against quadratic work, not a claim
    assert len(ranges.q_ranges) == 5 * 6 * 8 * 9  # at the edges two tiles share a window
    again = mp.from_ranges(ranges.q_ranges, ranges.k_ranges, ranges.attn_type_map, 115_200, 115_200)
    assert again == plan


def test_heads_that_differ_are_refused():
    masks = torch.stack([torch.ones(4, 4), torch.eye(4)]).bool()
    with pytest.raises(mp.PlanError, match=r"2 distinct patterns.*plan\.shard\('heads'"):
        magi.to_ranges(plan_of(masks, (2, 2), [[0, 1]]))
