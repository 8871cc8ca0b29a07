"""Lists for FlexAttention and flash-attn-4, walked in Python as the kernels walk them.

The model of the mask function is bit arithmetic on Python integers, by the text of NOTE [Rank].
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import maskplan as mp
from maskplan.lower import engine_lists
from maskplan.lower.engine_lists import EngineLists, fa4_lists, flex_block_size, flex_lists
from tests import strategies
from tests.oracle import plan_of_dense

# (arch, D, DV, direction) -> (rows of a Q block are a multiple of, keys of a KV block are one of or
# a multiple of), from what flash-attn-4 4.0.0b36 checks.
LEGAL = {
    ("sm90", 64, 64, "forward"): (64, range(16, 129, 16)),
    ("sm90", 128, 128, "forward"): (64, range(16, 129, 16)),
    ("sm90", 192, 192, "forward"): (64, range(16, 113, 16)),
    ("sm90", 256, 256, "forward"): (64, range(16, 81, 16)),
    ("sm90", 64, 64, "backward"): (128, (128,)),
    ("sm90", 128, 128, "backward"): (64, (128,)),
    ("sm90", 192, 192, "backward"): (64, (96,)),
    ("sm90", 256, 256, "backward"): (64, (64,)),
    ("sm100", 64, 64, "forward"): (256, 128),
    ("sm100", 128, 128, "forward"): (256, 128),
    ("sm100", 192, 128, "forward"): (256, 128),
    ("sm100", 64, 64, "backward"): (128, 128),
    ("sm100", 128, 128, "backward"): (128, 128),
    ("sm100", 192, 128, "backward"): (128, 256),
}
KERNELS = sorted({key[:3] for key in LEGAL})


class MaskFunction:
    """Bit of a pair, by rank."""

    def __init__(self, lists: EngineLists) -> None:
        self.bits, self.rows = lists.bits, lists.rows_per_token

    def __call__(self, b: int, h: int, q: int, k: int) -> bool:
        bits, (bq, bk) = self.bits, self.bits.block_size
        first = bits.first_line
        token, block = q // self.rows, k // bk
        line = int(first[min(b, len(first) - 1), min(h, first.shape[1] - 1)]) + token // bq
        word = int(bits.words[line, block // 32]) % 2**32
        if not word >> block % 32 & 1:
            return False
        below = (word & ((1 << block % 32) - 1)).bit_count()
        entry = int(bits.before[line, block // 32]) + below
        tile = bits.tiles[int(bits.content[entry])]
        return bool(int(tile[token % bq, k % bk // 32]) >> k % bk % 32 & 1)


def walked(lists: EngineLists, direction: str, batch: int) -> np.ndarray:
    """bool [batch, kernel heads, SQ * rows a token, SK]: the pairs that a kernel would attend.

    Fails if a pair is visited twice or a list does not ascend.
    """
    given = lists.forward if direction == "forward" else lists.backward
    group = lists.rows_per_token
    heads = lists.heads // group
    rows, seqlen_k = lists.geometry.seqlen_q * group, lists.geometry.seqlen_k
    block_q, block_k = given.block_size
    seen = np.zeros((batch, heads, rows, seqlen_k), dtype=int)
    mask_function = MaskFunction(lists) if lists.bits is not None else None
    for b in range(batch):
        for h in range(heads):
            for kind in ("mask", "full"):
                counts = getattr(given, f"{kind}_block_cnt")
                idx = getattr(given, f"{kind}_block_idx")
                counts, idx = (x[min(b, len(x) - 1), min(h, x.shape[1] - 1)] for x in (counts, idx))
                for line, count in enumerate(counts.tolist()):
                    listed = idx[line, :count].tolist()
                    assert listed == sorted(set(listed))
                    for other in listed:
                        m, n = (line, other) if direction == "forward" else (other, line)
                        q = range(m * block_q, min((m + 1) * block_q, rows))
                        k = range(n * block_k, min((n + 1) * block_k, seqlen_k))
                        assert q, "a block of no query is listed"
                        assert k, "a block of no key is listed"
                        if kind == "full":
                            seen[b, h, q.start : q.stop, k.start : k.stop] += 1
                            continue
                        for row in q:
                            for key in k:
                                seen[b, h, row, key] += mask_function(b, h, row, key)
    assert seen.max(initial=0) <= 1, "a pair is attended twice"
    return seen.astype(bool)


def wanted(mask: np.ndarray, lists: EngineLists, batch: int) -> np.ndarray:
    """The dense mask [1 or batch, 1, HK or HQ, SQ, SK] as kernel heads and rows."""
    group = lists.rows_per_token
    mask = np.repeat(mask, batch // len(mask), axis=0)
    if group == 1:
        return np.repeat(mask, lists.heads // mask.shape[1], axis=1)
    return np.repeat(np.repeat(mask, lists.kv_heads // mask.shape[1], axis=1), group, axis=2)


def plan_of(mask: torch.Tensor, block_size: tuple[int, int]) -> mp.Plan:
    batch, heads, *lengths = mask.shape
    ids = torch.arange(batch * heads).view(batch, heads)
    return plan_of_dense(mask.reshape(-1, *lengths), ids, block_size).canonical()


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_both_directions_of_fa4_attend_the_plan(kernel, data):
    arch, head_dim, head_dim_v = kernel
    geometry = data.draw(strategies.geometries(low=1, high=40))
    batch, kv_heads, group = 2, data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 3, 4]))
    heads = kv_heads * group
    shape = (
        data.draw(st.sampled_from([1, batch])),
        data.draw(st.sampled_from([1, kv_heads, heads])),
    )
    mask = data.draw(strategies.dense_masks((*shape, geometry.seqlen_q, geometry.seqlen_k)))
    lists = fa4_lists(
        plan_of(mask, geometry.block_size), arch=arch, head_dim=head_dim, head_dim_v=head_dim_v,
        heads=heads, kv_heads=kv_heads,
    )  # fmt: skip

    for direction in ("forward", "backward"):
        found = walked(lists, direction, batch)
        np.testing.assert_array_equal(found, wanted(mask.numpy(), lists, batch))
        assert_legal(lists, direction)


def assert_legal(lists: EngineLists, direction: str) -> None:
    given = getattr(lists, direction)
    rows, keys = LEGAL[lists.arch, lists.head_dim, lists.head_dim_v, direction]
    if direction == "forward" and lists.arch == "sm100":
        rows = 128 if lists.geometry.seqlen_q * lists.rows_per_token <= 128 else rows
    assert given.block_size[0] % rows == 0
    if isinstance(keys, int):
        assert given.block_size[1] % keys == 0
    else:
        assert given.block_size[1] in keys
    lines = (lists.geometry.seqlen_q * lists.rows_per_token, lists.geometry.seqlen_k)
    axis = 0 if direction == "forward" else 1
    blocks = -(-lines[axis] // given.block_size[axis])
    for name in ("mask", "full"):
        assert getattr(given, f"{name}_block_cnt").shape[2] == blocks
        assert getattr(given, f"{name}_block_idx").shape[3] >= 1
        assert getattr(given, f"{name}_block_cnt").shape[1] in (
            1,
            lists.heads // lists.rows_per_token,
        )


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_both_directions_of_flex_attend_the_plan(data):
    geometry = data.draw(strategies.geometries(low=1, high=40))
    shape = (data.draw(st.sampled_from([1, 2])), data.draw(st.sampled_from([1, 2, 4])))
    mask = data.draw(strategies.dense_masks((*shape, geometry.seqlen_q, geometry.seqlen_k)))
    plan = plan_of(mask, geometry.block_size)
    lists = flex_lists(
        plan, head_dim=16, heads=4, kv_heads=2, arch=data.draw(st.sampled_from(["cpu", "cuda"]))
    )

    for direction in ("forward", "backward"):
        found = walked(lists, direction, 2)
        np.testing.assert_array_equal(found, wanted(mask.numpy(), lists, 2))
        given = getattr(lists, direction)
        assert int(given.mask_block_idx.min()) >= 0
        assert int(given.full_block_idx.min()) >= 0
    if lists.arch == "cuda":
        assert lists.forward.block_size == flex_block_size(geometry.block_size)
        assert all(side % 128 == 0 for side in lists.forward.block_size)


def test_blocks_of_a_legal_size_stay():
    plan = mp.causal(1000, 1000, align="top_left", block_size=(128, 128))
    sm90 = fa4_lists(plan, arch="sm90", head_dim=128, heads=4, kv_heads=4)
    sm100 = fa4_lists(plan, arch="sm100", head_dim=128, heads=4, kv_heads=4)

    assert (sm90.forward.block_size, sm90.backward.block_size) == ((128, 128), (128, 128))
    assert (sm100.forward.block_size, sm100.backward.block_size) == ((256, 128), (128, 128))
    assert sm90.backward.dq_write_order is None
    assert sm100.backward.dq_write_order is not None


def test_blocks_beyond_the_limit_are_cut_where_they_stay_whole():
    """D=192 takes KV blocks of up to 112 keys: 64 cuts blocks of 128 in half, 112 would not."""
    plan = mp.from_block_mask(torch.ones(1, 1, 4, 4, dtype=torch.bool).tril(), 512, 512)
    lists = fa4_lists(plan, arch="sm90", head_dim=192, heads=1, kv_heads=1, backward=False)

    assert lists.forward.block_size == (128, 64)
    assert lists.whole
    assert lists.bits is None


def test_whole_forward_blocks_with_a_partial_backward_keep_tables():
    """The backward of D=192 walks blocks of 96 keys, which halve blocks of 128."""
    plan = mp.from_block_mask(torch.eye(4, dtype=torch.bool)[None, None], 512, 512)
    lists = fa4_lists(plan, arch="sm90", head_dim=192, heads=1, kv_heads=1)

    assert not lists.whole
    assert int(lists.forward.mask_block_cnt.sum()) == 0
    assert int(lists.backward.mask_block_cnt.sum()) > 0
    np.testing.assert_array_equal(walked(lists, "backward", 1), plan.to_dense().numpy())


def test_a_list_a_query_is_folded_and_stays_whole():
    """The video scenario: 128 query heads share one KV head and one list a query."""
    plan = mp.from_block_mask(
        torch.rand(1, 1, 8, 4, generator=torch.Generator().manual_seed(0)) < 0.5,
        8, 512, block_size=(1, 128),
    )  # fmt: skip
    lists = fa4_lists(plan, arch="sm90", head_dim=128, heads=128, kv_heads=1)

    assert lists.rows_per_token == 128
    assert lists.forward.block_size == lists.backward.block_size == (128, 128)
    assert lists.whole
    assert lists.forward.full_block_cnt.shape == (1, 1, 8)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "plan_heads", "block_q", "rows"),
    [
        (8, 2, 2, 16, 4),  # 16 queries x 4 heads fill 64 rows
        (8, 2, 1, 16, 4),
        (8, 2, 8, 16, 1),  # lists differ within a group
        (8, 2, 2, 128, 1),  # nothing to gain
        (8, 8, 8, 16, 1),  # no group
        (6, 2, 2, 16, 1),  # 3 heads do not divide a tile of 128 rows
    ],
)
def test_when_heads_are_folded(heads, kv_heads, plan_heads, block_q, rows):
    plan = mp.full(64, 128, block_size=(block_q, 128)).with_heads(plan_heads)
    lists = fa4_lists(plan, arch="sm90", head_dim=128, heads=heads, kv_heads=kv_heads)

    assert lists.rows_per_token == rows


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_short_lists_have_the_rank_and_width_of_longer_ones(arch):
    # A width of 1 is a constant to torch.compile; where there is one column it always is 1.
    band = mp.sliding_window(1024, 1024, block_size=(256, 128), left=0, right=0)
    one = fa4_lists(band, arch=arch, head_dim=64, heads=2, kv_heads=2)
    for lists in (one.forward, one.backward):
        for name in ("mask_block", "full_block"):
            idx, cnt = getattr(lists, f"{name}_idx"), getattr(lists, f"{name}_cnt")
            assert idx.shape[3] >= 2
            held = torch.arange(idx.shape[3]) < cnt[..., None]
            assert bool((idx[~held] == -1).all())
            assert bool((idx[held] >= 0).all())
    if arch == "sm100":
        order = one.backward.dq_write_order
        assert order.shape == one.backward.mask_block_idx.shape
    narrow = fa4_lists(mp.causal(64, 64), arch=arch, head_dim=64, heads=2, kv_heads=2)
    assert narrow.forward.mask_block_idx.shape[3] == 1


def test_a_move_keeps_everything():
    plan = mp.causal(300, 300, align="top_left", block_size=(128, 128))
    lists = fa4_lists(plan, arch="sm100", head_dim=128, heads=2, kv_heads=1)
    leaves, structure = pytree.tree_flatten(lists)
    again = pytree.tree_unflatten([leaf.clone() for leaf in leaves], structure)
    moved = lists.to("meta")

    np.testing.assert_array_equal(walked(again, "forward", 1), walked(lists, "forward", 1))
    assert {x.device.type for x in pytree.tree_leaves(moved)} == {"meta"}
    assert moved.forward.block_size == lists.forward.block_size


def test_tiles_that_no_engine_can_index_are_refused():
    plan = mp.causal(256, 256, align="top_left", block_size=(128, 128))
    huge = replace(plan, tiles=torch.zeros(1, 128, 4, dtype=torch.int32).expand(1 << 22, 128, 4))
    with pytest.raises(mp.UnsupportedError, match="too many bit tiles"):
        fa4_lists(replace(huge), arch="sm90", head_dim=128, heads=1, kv_heads=1, backward=False)


def test_the_model_would_find_a_wrong_bit():
    """A planted fault: one bit of one tile turned."""
    plan = mp.causal(40, 40, align="top_left", block_size=(16, 32))
    lists = flex_lists(plan, head_dim=16, heads=1, kv_heads=1, arch="cpu")
    tiles = lists.bits.tiles.clone()
    tiles[2, 3, 0] ^= 1 << 5
    wrong = replace(lists, bits=replace(lists.bits, tiles=tiles))

    assert not np.array_equal(walked(wrong, "forward", 1), plan.to_dense().numpy())


def test_small_flex_lists_are_dense_so_that_their_shape_is_that_of_the_problem(monkeypatch):
    plans = (mp.full(512, 640), mp.sliding_window(512, 640, left=9, right=9, align="top_left"))
    shape = {"head_dim": 64, "heads": 2, "kv_heads": 2}
    small = [flex_lists(plan, **shape) for plan in plans]
    monkeypatch.setattr(engine_lists, "_FEW_SLOTS", 19)
    large = [flex_lists(plan, **shape) for plan in plans]

    assert all(lists.dense for lists in small)
    assert {lists.forward.full_block_idx.shape for lists in small} == {(1, 1, 4, 5)}
    assert {lists.backward.mask_block_idx.shape for lists in small} == {(1, 1, 5, 4)}
    assert not any(lists.dense for lists in large)
    assert [lists.forward.mask_block_idx.shape[3] for lists in large] == [5, 3]
    assert not flex_lists(plans[0], width="compact", **shape).dense
