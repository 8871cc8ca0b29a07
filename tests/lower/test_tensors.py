"""Padded lists, against loops over the dense mask: values, order, tails and widths."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskplan as mp
from tests.oracle import plan_of_dense
from tests.strategies import plans


def kinds(dense: torch.Tensor, block_size: tuple[int, int]) -> list[list[tuple[list, list]]]:
    """[pattern][row] -> (mask blocks, full blocks) of bool [P, R, C], by loops."""
    br, bc = block_size
    found = []
    for mask in dense:
        rows = []
        for top in range(0, mask.shape[0], br):
            blocks = [
                mask[top : top + br, left : left + bc] for left in range(0, mask.shape[1], bc)
            ]
            full = [n for n, block in enumerate(blocks) if block.all()]
            rows.append(([n for n, b in enumerate(blocks) if b.any() and n not in full], full))
        found.append(rows)
    return found


def check_lists(lists, dense, block_size, width):
    """Counts, entries, -1 fill and widths of both kinds of list."""
    batch, heads = dense.shape[:2]
    want = kinds(dense.flatten(0, 1), block_size)
    columns = -(-dense.shape[3] // block_size[1])
    for kind, name in enumerate(("mask", "full")):
        count, index = getattr(lists, f"{name}_block_cnt"), getattr(lists, f"{name}_block_idx")
        assert count.dtype == index.dtype == torch.int32
        assert count.shape == index.shape[:-1] == (batch, heads, len(want[0]) if want else 0)
        longest = max([len(row[kind]) for head in want for row in head], default=0)
        assert index.shape[-1] == max(longest if width == "compact" else columns, 1)
        flat_count, flat_index = count.flatten(0, 1), index.flatten(0, 1)
        for head, rows in enumerate(want):
            for row, listed in enumerate(rows):
                entries = listed[kind]
                assert int(flat_count[head, row]) == len(entries)
                tail = [-1] * (index.shape[-1] - len(entries))
                assert flat_index[head, row].tolist() == entries + tail


@given(plans(canonical=True), st.sampled_from(["compact", "dense"]))
def test_forward_lists(plan, width):
    check_lists(plan.block_sparse_tensors(width=width), plan.to_dense(), plan.block_size, width)


@given(plans(canonical=True), st.sampled_from(["compact", "dense"]))
def test_loop_q_lists(plan, width):
    turned = plan.transpose()
    bq, bk = plan.block_size

    check_lists(turned.block_sparse_tensors(width=width), turned.to_dense(), (bk, bq), width)


@given(plans(), st.sampled_from([1, 2, 4]))
def test_coarse_loop_q_lists_keep_the_kinds(plan, subtile):
    """A coarse block is full only if every in-range child is there and full."""
    bq, bk = plan.block_size
    coarse = plan.reblock((bq * subtile, bk)).transpose()

    lists = coarse.block_sparse_tensors()
    check_lists(lists, plan.to_dense().transpose(2, 3), (bk, bq * subtile), "compact")


@given(plans())
def test_mask_tiles_are_the_blocks_of_the_mask(plan):
    lists, dense = plan.block_sparse_tensors(), plan.to_dense()
    bq, bk = plan.block_size
    for b, h, m in (lists.mask_block_cnt > 0).nonzero().tolist():
        for i in range(int(lists.mask_block_cnt[b, h, m])):
            n = int(lists.mask_block_idx[b, h, m, i])
            tile = lists.tiles[int(lists.mask_tile_id[b, h, m, i])]
            block = dense[b, h, m * bq : (m + 1) * bq, n * bk : (n + 1) * bk]
            bits = torch.tensor(
                [[(int(w) >> j) & 1 for w in row for j in range(32)] for row in tile]
            )
            assert torch.equal(bits[: block.shape[0], : block.shape[1]].bool(), block)


@given(plans(), st.booleans())
def test_write_order_is_the_rank_among_contributors(plan, spt):
    """By the cumulative sum over a dense presence matrix, as a kernel's semaphore counts."""
    bq, bk = plan.block_size
    dense = plan.to_dense()
    lists = plan.transpose().block_sparse_tensors(spt=spt)
    batch, heads = dense.shape[:2]
    rows, cols = plan.geometry.num_q_blocks, plan.geometry.num_k_blocks
    present = torch.zeros(batch, heads, rows, cols, dtype=torch.bool)
    for m in range(rows):
        for n in range(cols):
            block = dense[:, :, m * bq : (m + 1) * bq, n * bk : (n + 1) * bk]
            present[:, :, m, n] = block.flatten(2).any(-1)
    rank = present.flip(-1).cumsum(-1).flip(-1) - 1 if spt else present.cumsum(-1) - 1

    assert lists.spt is spt
    pairs = (
        (lists.mask_block_idx, lists.dq_write_order),
        (lists.full_block_idx, lists.dq_write_order_full),
    )
    for index, order in pairs:
        assert order.shape == index.shape
        assert order.dtype == torch.int32
        assert torch.equal(order == -1, index == -1)
        for b, h, n, i in (index >= 0).nonzero().tolist():
            assert order[b, h, n, i] == rank[b, h, index[b, h, n, i], n]


def sample(block_size=(4, 4), n=12, heads=1):
    ids = torch.zeros(1, heads, dtype=torch.int32)
    return plan_of_dense(torch.ones(1, n, n).tril().bool(), ids, block_size).canonical()


def test_fa4_gives_keywords_by_their_names():
    lists = sample().transpose().block_sparse_tensors()
    given_mask = lists.fa4(mask_mod=object())

    assert set(given_mask) == {
        "mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx",
        "block_size", "dq_write_order", "dq_write_order_full", "spt",
    }  # fmt: skip
    assert given_mask["mask_block_idx"] is lists.mask_block_idx
    assert given_mask["block_size"] == (4, 4)


def test_mask_blocks_without_a_mask_are_refused():
    with pytest.raises(mp.PlanError, match="3 mask blocks and mask_mod=None") as caught:
        sample().block_sparse_tensors().fa4()
    assert "superset=True" in str(caught.value)

    whole = sample().reblock((4, 4), superset=True).block_sparse_tensors().fa4()
    assert whole["full_block_cnt"].tolist() == [[[1, 2, 3]]]
    assert whole["mask_block_cnt"].tolist() == [[[0, 0, 0]]]
    assert whole["mask_block_idx"].tolist() == [[[[-1], [-1], [-1]]]]


def test_unknown_width_is_refused():
    with pytest.raises(mp.PlanError, match="'wide'"):
        sample().block_sparse_tensors(width="wide")


@pytest.mark.parametrize(
    ("turned", "name", "known"),
    [
        (False, "spt", "direction and width"),
        (False, "widht", "direction and width"),
        (True, "direction", "width and spt"),
    ],
)
def test_an_unknown_keyword_is_one_sentence(turned, name, known):
    plan = sample().transpose() if turned else sample()
    with pytest.raises(mp.PlanTypeError) as caught:
        plan.block_sparse_tensors(**{name: True})

    assert str(caught.value) == (
        f"argument not known in block_sparse_tensors: got {name}, wanted {known}; leave it out; "
        "spt is of plan.transpose(), direction of a Plan."
    )


def test_packed_lists_count_packed_rows():
    target = mp.target("sm100", head_dim=128, group=8, pack_gqa=True)
    plan = sample((32, 128), n=256)
    lists = plan.block_sparse_tensors(target)

    assert lists.block_size == (256, 128)
    assert lists.mask_block_cnt.shape == (1, 1, 8)


def test_c2_every_q_block_on_the_first_keys():
    """flash-attention 2897: all four Q blocks list the one KV block 0; the others see nobody."""
    dense = torch.zeros(1, 512, 512, dtype=torch.bool)
    dense[:, :, :64] = True
    plan = plan_of_dense(dense, torch.zeros(1, 1, dtype=torch.int32), (128, 64)).canonical()
    forward, loop_q = plan.block_sparse_tensors(), plan.transpose().block_sparse_tensors()

    assert forward.full_block_idx.tolist() == [[[[0], [0], [0], [0]]]]
    assert loop_q.full_block_cnt.tolist() == [[[4, 0, 0, 0, 0, 0, 0, 0]]]
    assert loop_q.full_block_idx[0, 0, 0].tolist() == [0, 1, 2, 3]
    assert (loop_q.full_block_idx[0, 0, 1:] == -1).all()


@pytest.mark.parametrize("width", ["compact", "dense", 9])
def test_lists_of_topk_are_those_of_its_plan(width):
    indices = torch.randint(-1, 70, (2, 3, 11, 20), generator=torch.Generator().manual_seed(3))
    lengths = torch.arange(11).expand(1, 1, 11)
    given = {"block_size": (4, 8), "lengths": lengths}
    made = mp.BlockSparseTensors.from_topk(indices, 70, **given, width=width)
    wanted = mp.from_topk(indices, 70, **given).block_sparse_tensors(width=width)

    for name in ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx",
                 "mask_tile_id", "tiles"):  # fmt: skip
        assert torch.equal(getattr(made, name), getattr(wanted, name)), name
    assert made.block_size == (4, 8)
    assert made.status is None
    made.validate()


def test_lists_of_topk_are_checked_as_those_of_a_plan():
    make = mp.BlockSparseTensors.from_topk
    indices = torch.arange(8).view(1, 1, 1, 8)
    with pytest.raises(mp.PlanError, match=r"direction not available .* got 'loop_q'"):
        make(indices, 16, direction="loop_q")
    with pytest.raises(mp.PlanError, match="block is not whole"):
        make(indices, 16, block_size=(1, 16), whole=True)
    with pytest.raises(mp.PlanError, match="block size does not fit in forward of sm90"):
        make(indices, 16, mp.target("sm90", head_dim=128), block_size=(1, 16))
    with pytest.raises(mp.PlanError, match=r"index out of range in indices"):
        make(indices + 12, 16)


def test_lists_of_topk_for_packed_heads_count_packed_rows():
    target = mp.target("sm100", head_dim=128, group=4, pack_gqa=True)
    indices = torch.randint(-1, 300, (1, 2, 70, 9), generator=torch.Generator().manual_seed(4))
    made = mp.BlockSparseTensors.from_topk(indices, 300, target, block_size=(64, 128))

    assert made.block_size == (256, 128)
    assert made.mask_block_idx.shape == (1, 2, 2, 3)


@pytest.mark.parametrize(
    ("indices", "options"),
    [
        (None, {}),
        ([[[[1]]]], {}),
        (torch.zeros(1, 1, 4, 2), {}),
        (torch.zeros(1, 1, 4, 2, dtype=torch.int32).to_sparse(), {}),
        (torch.zeros(1, 1, 4, 2, dtype=torch.int32), {"width": 0}),
        (torch.tensor([0, 9]).expand(1, 1, 4, 2), {"width": 1}),
        (torch.zeros(1, 1, 4, 2, dtype=torch.int32), {"target": "sm100"}),
        (torch.zeros(1, 1, 4, 2, dtype=torch.int32), {"target": ["sm100"]}),
        (torch.tensor([0, 16]).expand(1, 1, 4, 2), {}),
    ],
)
def test_lists_of_topk_are_refused_as_by_a_plan(indices, options):
    with pytest.raises(mp.MaskplanError) as caught:
        mp.BlockSparseTensors.from_topk(indices, 16, block_size=(2, 8), **options)
    with pytest.raises(mp.MaskplanError) as wanted:
        mp.from_topk(indices, 16, block_size=(2, 8)).block_sparse_tensors(**options)

    assert type(caught.value) is type(wanted.value)
    assert str(caught.value) == str(wanted.value)


@pytest.mark.parametrize("spt", ["no", 1, None])
def test_spt_is_a_flag(spt):
    plan = mp.causal(300, 300)
    with pytest.raises(mp.PlanTypeError, match=r"no flag in spt: got .* wanted True or"):
        plan.transpose().block_sparse_tensors(spt=spt)
    with pytest.raises(mp.PlanTypeError, match=r"no flag in spt: got .* wanted True or"):
        plan.lower("cpu", spt=spt)


def test_repr_is_a_line_of_sizes_and_no_numbers():
    lists = mp.causal(1000, 1000).transpose().block_sparse_tensors()
    assert repr(lists) == (
        "BlockSparseTensors(batch=1, heads=1, 8 rows of up to 1 mask and 7 full blocks "
        "of 128 x 128, 2 bit tiles, with dQ write order, on cpu)"
    )
