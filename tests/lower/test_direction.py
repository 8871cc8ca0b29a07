"""The choice of a backward: what it counts, against loops, and when it takes which."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.lower.direction import SMS, choose_direction, head_split
from maskplan.lower.lowering import backward_choice
from tests.oracle import plan_of_dense
from tests.strategies import plans

# Of NOTE [LoopQ or LoopK], in pairs of LoopQ: 8 bytes.
LOOP_Q_ITEM, LOOP_Q_PAIR, LOOP_K_ITEM, LOOP_K_PAIR = 1.0, 1.0, 0.75, 1.5
SPLIT_ITEM, SUMS = 1.5, 1.25


def plan_of(blocks, heads=1):
    """A plan whose blocks of one token are those of bool [patterns, M, N]."""
    ids = torch.arange(len(blocks)).repeat_interleave(heads // len(blocks))[None]
    return plan_of_dense(blocks, ids, (1, 1)).canonical()


@settings(max_examples=40)
@given(plans(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 3]))
def test_the_longest_item_and_the_share_of_an_sm(plan, group, each):
    kv_heads = each if plan.heads == 1 else plan.heads
    choice = choose_direction(plan, kv_heads=kv_heads, group=group)

    owned = plan.batch * kv_heads * plan.axes.cols
    split = next((n for n in (1, 2, 4) if group % n == 0 and owned * n >= SMS), group)
    rows, columns = [], []
    for b in range(plan.batch):
        for h in range(kv_heads * split):
            column = torch.zeros(plan.axes.cols)
            for g in range(group // split):
                head = (h * (group // split) + g) * plan.heads // (kv_heads * group)
                pattern = int(plan.pattern_id[b, head])
                for row in range(plan.axes.rows):
                    line = pattern * plan.axes.rows + row
                    visited = plan.col[int(plan.row_ptr[line]) : int(plan.row_ptr[line + 1])]
                    rows.append(len(visited))
                    column[visited.long()] += 1
            columns += column.tolist()
    total, item = sum(rows), LOOP_Q_ITEM if split == 1 else SPLIT_ITEM
    assert choice.loop_q.items == len(columns)
    assert choice.loop_k.items == len(rows)
    if columns and rows:
        assert choice.loop_q.longest == max(columns) * LOOP_Q_PAIR + item
        assert choice.loop_k.longest == max(rows) * LOOP_K_PAIR + LOOP_K_ITEM
    sums_q, sums_k = SUMS * len(rows), 2 * SUMS * owned
    share_q = total * LOOP_Q_PAIR + item * len(columns) + sums_q + (sums_k if split > 1 else 0)
    share_k = total * LOOP_K_PAIR + LOOP_K_ITEM * len(rows) + sums_k
    assert choice.loop_q.share == pytest.approx(share_q / SMS)
    assert choice.loop_k.share == pytest.approx(share_k / SMS)
    slower = choice.loop_k.time >= choice.loop_q.time
    assert choice.direction == ("loop_q" if slower else "loop_k")


@pytest.mark.parametrize(
    ("items", "group", "ctas", "split"),
    [(148, 8, 148, 1), (147, 8, 148, 2), (32, 8, 148, 8), (40, 8, 148, 4), (1, 6, 148, 6),
     (60, 6, 148, 3), (1, 1, 148, 1)],
)  # fmt: skip
def test_a_group_is_split_as_far_as_it_keeps_ctas_busy(items, group, ctas, split):
    assert head_split(items, group, ctas) == split


def test_even_columns_take_loop_q():
    blocks = torch.ones(1, 600, 600).tril().triu(-20).bool()

    assert choose_direction(plan_of(blocks), kv_heads=8).direction == "loop_q"


def test_a_key_that_every_query_sees_takes_loop_k():
    """A sink: its column is 600 pairs long, where a share is 40."""
    blocks = torch.ones(1, 600, 600).tril().triu(-9).bool()
    blocks[..., 0] = True

    assert choose_direction(plan_of(blocks)).direction == "loop_k"


def test_few_keys_take_loop_k_if_no_group_is_split():
    blocks = torch.ones(1, 600, 4, dtype=torch.bool)

    assert choose_direction(plan_of(blocks), kv_heads=8).direction == "loop_k"
    assert choose_direction(plan_of(blocks), kv_heads=64).direction == "loop_q"
    assert choose_direction(plan_of(blocks), kv_heads=8, group=8).direction == "loop_q"


def test_deterministic_gradients_are_loop_q_s():
    choice = choose_direction(plan_of(torch.ones(1, 600, 4).bool()), deterministic=True)

    assert choice.direction == "loop_q"
    assert str(choice) == "loop_q: deterministic, and LoopK adds dK and dV in any order"


def test_it_is_explained():
    plan = mp.from_block_mask(
        torch.ones(1, 1, 600, 4).bool(), seqlen_q=76800, seqlen_k=512, block_size=(128, 128)
    )
    target = mp.target("sm100", group=2)

    choice = backward_choice(plan, target, kv_heads=4)

    assert str(choice).splitlines() == [
        "loop_k: a few long columns would keep LoopQ's SMs waiting",
        "in pairs of LoopQ, on 148 SMs (a model, not a measurement):",
        "  loop_q  32 items, the longest 601.5, a share of an SM 170.9",
        "  loop_k  4800 items, the longest 6.8, a share of an SM 219.2",
    ]
    assert plan.lower(target, backward="auto", kv_heads=4).backward == ("loop_k",)
    assert plan.lower(target, backward="auto", kv_heads=64).backward == ("loop_q",)


def test_packed_rows_are_counted_as_they_are_walked():
    plan = mp.from_block_mask(
        torch.ones(1, 1, 8, 4).bool(), seqlen_q=128, seqlen_k=512, block_size=(16, 128)
    )
    packed = backward_choice(plan, mp.target("sm100", group=8, pack_gqa=True), kv_heads=2)
    plain = backward_choice(plan, mp.target("sm100", group=8), kv_heads=2)

    assert packed.loop_k.items == 2 * 8
    assert plain.loop_k.items == 2 * 8  # one tile, of each of 16 query heads


@pytest.mark.parametrize("target", ["cpu", "sm90"])
def test_where_there_is_one_direction(target):
    plan = mp.causal(256, 256, block_size=(128, 128))

    assert backward_choice(plan, target).direction == "loop_q"
    assert plan.lower(target, backward="auto").backward == ("loop_q",)


def test_heads_that_do_not_fit_are_refused():
    plan = mp.causal(256, 256, block_size=(128, 128)).with_heads(3)

    with pytest.raises(mp.PlanError) as caught:
        backward_choice(plan, mp.target("sm100", group=2), kv_heads=2)

    assert str(caught.value) == (
        "plan has another number of heads in the choice of a backward: got 3, wanted 1, 2 KV heads "
        "or 4 query heads; pass kv_heads and group as the tensors have them."
    )


def test_auto_stands_alone():
    plan = mp.causal(256, 256, block_size=(128, 128))

    with pytest.raises(mp.PlanError, match="unknown direction"):
        plan.lower("sm100", backward=("auto", "loop_q"))
    with pytest.raises(mp.PlanTypeError, match="argument not known"):
        plan.lower("sm100", backward="loop_q", kv_heads=2)


@pytest.mark.parametrize("target", ["cpu", "sm90", "sm100", "flex"])
@pytest.mark.parametrize("backward", ["forward", ("loop_q", "forward"), "sideways"])
def test_what_is_no_direction_of_a_backward_is_refused(target, backward):
    plan = mp.causal(256, 256, block_size=(128, 128))

    with pytest.raises(mp.PlanError, match=r'unknown direction in backward: .* wanted .*"auto"'):
        plan.lower(target, backward=backward)
