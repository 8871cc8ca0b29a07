"""SpargeAttn's masks and delta-coded lists, for both block shapes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskplan as mp
from maskplan.interop import sparge
from tests.oracle import assert_plan


@st.composite
def block_masks(draw):
    """(bool [B, H, M, N], SQ, SK, arch)."""
    arch = draw(st.sampled_from(["sm80", "sm90"]))
    bq, bk = (64, 128) if arch == "sm90" else (128, 64)
    seqlen_q, seqlen_k = draw(st.integers(1, 300)), draw(st.integers(1, 300))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    shape = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 2)),
        -(-seqlen_q // bq),
        -(-seqlen_k // bk),
    )
    return torch.rand(shape, generator=generator) < 0.5, seqlen_q, seqlen_k, arch


def dense_of(mask, bq, bk, seqlen_q, seqlen_k):
    return mask.repeat_interleave(bq, 2).repeat_interleave(bk, 3)[:, :, :seqlen_q, :seqlen_k]


def lut_of(mask):
    """The kernel's loop: the distance to the block before, a row at a time."""
    lut = torch.zeros(mask.shape, dtype=torch.int32)
    counts = torch.zeros(mask.shape[:3], dtype=torch.int32)
    for place in torch.cartesian_prod(*map(torch.arange, mask.shape[:3])).tolist():
        before = 0
        for block in range(mask.shape[3]):
            if mask[tuple(place)][block]:
                lut[tuple(place)][counts[tuple(place)]] = block - before
                counts[tuple(place)] += 1
                before = block
    return lut, counts


@given(block_masks())
def test_masks_and_lists_both_ways(case):
    mask, seqlen_q, seqlen_k, arch = case
    bq, bk = (64, 128) if arch == "sm90" else (128, 64)
    lut, counts = lut_of(mask)
    plan = sparge.from_mask_id(mask.to(torch.int8), seqlen_q, seqlen_k, arch=arch)

    assert_plan(plan, dense_of(mask, bq, bk, seqlen_q, seqlen_k))
    assert sparge.from_lut(lut, counts, seqlen_q, seqlen_k, arch=arch) == plan
    tensors = sparge.to_sparge(plan, arch)
    assert torch.equal(tensors.mask_id, mask.to(torch.int8))
    assert torch.equal(tensors.lut, lut)
    assert torch.equal(tensors.valid_block_num, counts)
    assert tensors.block_size == (bq, bk)


def test_lanes_past_the_count_are_not_looked_at():
    lut = torch.tensor([[[[1, 2, 99, -7]]]], dtype=torch.int32)
    plan = sparge.from_lut(lut, torch.tensor([[[2]]]), 100, 300, arch="sm80")

    assert plan.col.tolist() == [1, 3]


def test_a_mask_of_the_wrong_architecture_is_refused():
    mask = torch.ones(1, 1, 2, 4, dtype=torch.int8)  # 128 x 64 blocks of 256 x 256 tokens

    assert sparge.from_mask_id(mask, 256, 256, arch="sm89").density == 1.0
    with pytest.raises(mp.PlanError, match=r"2 x 4 blocks, wanted 4 x 2"):
        sparge.from_mask_id(mask, 256, 256, arch="sm90")


def test_a_plan_is_recut_for_each_architecture():
    plan = mp.from_block_mask(torch.eye(4, dtype=torch.bool), 512, 512)

    for arch, shape in (("sm80", (4, 8)), ("sm90", (8, 4))):
        tensors = sparge.to_sparge(plan, arch)
        assert tuple(tensors.mask_id.shape[2:]) == shape
        assert sparge.from_mask_id(tensors.mask_id, 512, 512, arch=arch).reblock((128, 128)) == plan


def test_blocks_kept_in_part_need_a_word():
    plan = mp.causal(256, 256)
    with pytest.raises(mp.PlanError, match=r"kept in part in SpargeAttn mask_id.*superset=True"):
        sparge.to_sparge(plan, "sm80")
    tensors = sparge.to_sparge(plan, "sm80", superset=True)
    assert tensors.mask_id[0, 0].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: sparge.block_size_of("sm70"), "'sm120', 'sm80'"),
        (
            lambda: sparge.from_mask_id(torch.full((1, 1, 1, 1), 2), 4, 4, arch="sm80"),
            "mask_id[0, 0, 0, 0]: got 2",
        ),
        (lambda: sparge.block_size_of(["sm80"]), "unknown architecture in arch: got ['sm80']"),
        (lambda: sparge.from_mask_id(torch.ones(1, 1, 1, 1), 4, 4, arch="sm80"), "got float32"),
        (lambda: sparge.from_mask_id(torch.ones(1, 1).bool(), 4, 4, arch="sm80"), "2 axes"),
        (
            lambda: sparge.from_lut(
                torch.tensor([[[[3, -1]]]]), torch.tensor([[[2]]]), 4, 256, arch="sm80"
            ),
            "list is not sorted",
        ),
        (
            lambda: sparge.from_lut(
                torch.tensor([[[[3, 1]]]]), torch.tensor([[[2]]]), 4, 256, arch="sm80"
            ),
            "got 4, wanted 0 <= block < 4",
        ),
        (
            lambda: sparge.from_lut(
                torch.tensor([[[[3, 1]]]]), torch.tensor([[[3]]]), 4, 256, arch="sm80"
            ),
            "count does not fit its list",
        ),
    ],
)
def test_what_is_refused(call, part):
    with pytest.raises(mp.MaskplanError) as caught:
        call()
    assert part in str(caught.value)


def test_f3_a_map_for_one_architecture_is_refused_on_another():
    """SpargeAttn 79: sm90 walks 64 x 128, and a map built for 128 x 64 crashed its kernel."""
    plan = mp.causal(1000, 1000, block_size=(128, 128)).reblock((128, 64), superset=True)
    made = sparge.to_sparge(plan, "sm89")
    assert made.mask_id.shape[2:] == (8, 16)
    assert sparge.from_mask_id(made.mask_id, 1000, 1000, arch="sm89") == plan
    with pytest.raises(mp.PlanError, match=r"8.*16"):
        sparge.from_mask_id(made.mask_id, 1000, 1000, arch="sm90")

    again = plan.reblock((64, 128), superset=True)
    assert sparge.to_sparge(again, "sm90").mask_id.shape[2:] == (16, 8)
