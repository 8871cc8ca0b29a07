"""The table of legal tiles, row by row as flash-attn-4 checks them."""

import pytest
import torch

import maskplan as mp

LEGAL = [
    # arch, (D, DV), direction, legal, illegal
    ("sm100", (128, 128), "forward", [(256, 128), (256, 256), (512, 128)], [(128, 128), (256, 64)]),
    ("sm100", (64, 64), "forward", [(256, 128)], [(128, 128)]),
    ("sm100", (192, 128), "forward", [(256, 128)], [(128, 128)]),
    ("sm100", (256, 256), "forward", [(128, 128)], [(64, 128)]),
    ("sm100", (128, 128), "loop_q", [(128, 128), (256, 128), (256, 256)], [(64, 128), (128, 64)]),
    ("sm100", (192, 128), "loop_q", [(128, 256)], [(128, 128)]),
    ("sm100", (128, 128), "loop_k", [(128, 128)], [(64, 64)]),
    ("sm90", (128, 128), "forward", [(128, 128), (64, 64), (128, 16)], [(32, 64), (128, 256)]),
    ("sm90", (192, 192), "forward", [(128, 112), (128, 64)], [(128, 128)]),
    ("sm90", (256, 256), "forward", [(128, 80), (128, 16)], [(128, 128), (128, 96)]),
    ("sm90", (256, 128), "forward", [(128, 80)], [(128, 128)]),
    ("sm90", (192, 128), "forward", [(128, 128)], [(128, 256)]),
    ("sm90", (64, 64), "loop_q", [(128, 128)], [(64, 128), (128, 64)]),
    ("sm90", (128, 128), "loop_q", [(64, 128), (128, 128)], [(32, 128), (128, 64)]),
    ("sm90", (192, 192), "loop_q", [(64, 96)], [(64, 128)]),
    ("sm90", (256, 256), "loop_q", [(64, 64)], [(64, 128)]),
    ("cpu", (5, 3), "forward", [(1, 1), (7, 384)], []),
]


@pytest.mark.parametrize(("arch", "dims", "direction", "legal", "illegal"), LEGAL)
def test_table(arch, dims, direction, legal, illegal):
    target = mp.target(arch, head_dim=dims[0], head_dim_v=dims[1])
    for size in legal:
        target.check(size, direction)
    for size in illegal:
        with pytest.raises(mp.PlanError, match="does not fit"):
            target.check(size, direction)


@pytest.mark.parametrize(("arch", "dims", "direction", "legal", "illegal"), LEGAL)
def test_fit_is_legal_and_named_in_the_error(arch, dims, direction, legal, illegal):
    target = mp.target(arch, head_dim=dims[0], head_dim_v=dims[1])
    for size in [*legal, *illegal, (1, 1), (100, 300)]:
        fitted = target.fit(size, direction)
        target.check(fitted, direction)
        if size in illegal:
            with pytest.raises(mp.PlanError) as caught:
                target.check(size, direction)
            assert f"reblock({fitted})" in str(caught.value)
        if size in legal:
            assert fitted == size


def test_f1_128_row_blocks_on_sm100_are_told_the_way():
    """flash-attention 2727: a forward in 128-row blocks is refused, and reblock fixes it."""
    plan = mp.causal(1024, 1024, block_size=(128, 128))
    target = mp.target("sm100")
    with pytest.raises(mp.PlanError, match=r"128 x 128 tokens.*multiple of 256.*\(256, 128\)"):
        plan.block_sparse_tensors(target)

    lists = plan.reblock((256, 128)).block_sparse_tensors(target)
    assert lists.mask_block_cnt.tolist() == [[[2, 2, 2, 2]]]
    assert lists.full_block_cnt.tolist() == [[[0, 2, 4, 6]]]
    plan.transpose().block_sparse_tensors(target)  # the backward takes 128 rows


def test_few_rows_take_one_tile():
    mp.causal(128, 128, block_size=(128, 128)).block_sparse_tensors(mp.target("sm100"))


def test_packed_rows_count():
    packed = mp.target("sm100", group=8, pack_gqa=True)

    packed.check((32, 128), "forward")
    assert packed.fit((1, 1), "forward") == (32, 128)
    with pytest.raises(mp.PlanError, match="16 x 128 tokens, 128 packed rows"):
        packed.check((16, 128), "forward")


@pytest.mark.parametrize(
    ("arguments", "error", "parts"),
    [
        ({"arch": "sm80"}, mp.PlanError, ["'sm80'", "sm90, sm100"]),
        ({"arch": "sm100", "head_dim": 160}, mp.UnsupportedError, ["160", "(192, 128)"]),
        ({"arch": "sm90", "head_dim": 20}, mp.UnsupportedError, ["20", "multiples of 8"]),
        (
            {"arch": "sm100", "group": 3, "pack_gqa": True},
            mp.UnsupportedError,
            ["group=3", "divisor of 128", "pack_gqa=False"],
        ),
    ],
)
def test_refusals(arguments, error, parts):
    with pytest.raises(error) as caught:
        mp.target(**arguments)

    for part in parts:
        assert part in str(caught.value)


def test_directions_that_do_not_exist_say_why():
    with pytest.raises(mp.UnsupportedError, match="at most 192"):
        mp.target("sm100", head_dim=256).check((128, 128), "loop_q")
    with pytest.raises(mp.UnsupportedError, match="tensor memory"):
        mp.target("sm100", head_dim=192, head_dim_v=128).check((128, 128), "loop_k")
    with pytest.raises(mp.PlanError, match="'sideways'"):
        mp.target("cpu").check((1, 1), "sideways")


def test_what_is_no_target_is_named():
    plan = mp.causal(8, 8, block_size=(4, 4))
    for act in (
        lambda: plan.lower(5),
        lambda: plan.block_sparse_tensors(("sm100", 128)),
        lambda: plan.transpose().block_sparse_tensors(mp.target),
        lambda: plan.token_tiles(None),
        lambda: mp.BlockSparseTensors.from_topk(torch.zeros(1, 1, 8, 1).int(), 8, 5),
    ):
        with pytest.raises(mp.PlanTypeError, match="wanted a Target; make one with maskplan"):
            act()


def test_a_name_is_a_target_of_head_dim_128():
    plan, sm100 = mp.documents([900, 300]), mp.target("sm100", head_dim=128)
    plan = plan.reblock((256, 128))
    indices = torch.randint(-1, 1200, (1, 1, 1200, 9), generator=torch.Generator().manual_seed(1))
    topk = mp.BlockSparseTensors.from_topk
    for make in (
        lambda target: plan.block_sparse_tensors(target).mask_block_idx,
        lambda target: plan.transpose().block_sparse_tensors(target).mask_block_idx,
        lambda target: topk(indices, 1200, target, block_size=(256, 128)).mask_block_idx,
        lambda target: plan.token_tiles(target, policy="union", max_coverage=1.0).row_bits,
        lambda target: plan.lower(target).forward.col,
    ):
        assert torch.equal(make("sm100"), make(sm100))
        with pytest.raises(
            mp.PlanError, match=r"unknown architecture .* got 'sm75', wanted one of"
        ):
            make("sm75")


@pytest.mark.parametrize("pack_gqa", ["no", 1])
def test_packing_is_a_flag(pack_gqa):
    with pytest.raises(mp.PlanTypeError, match="argument is no flag in pack_gqa"):
        mp.target("sm100", group=4, pack_gqa=pack_gqa)


def test_one_direction_may_be_a_string():
    lowered = mp.causal(8, 8, block_size=(4, 4)).lower("cpu", backward="loop_k")

    assert lowered.loop_k is not None
    assert lowered.loop_q is None
