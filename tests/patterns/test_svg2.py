"""Orders by label, and clusters that see clusters, token by token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from maskplan.video import Grid, LabelOrder, TokenOrder, permutation_cost, svg2
from tests.oracle import assert_plan
from tests.strategies import block_sizes


@st.composite
def orders(draw, *, batch, heads, clusters=None):
    """Labels of any sizes, empty clusters among them, text before, after or none."""
    clusters = draw(st.integers(1, 6)) if clusters is None else clusters
    tokens = draw(st.integers(0, 40))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    used = draw(st.integers(1, clusters))
    labels = torch.randint(used, (batch, heads, tokens), generator=seed, dtype=torch.int32)
    return LabelOrder(
        labels=labels,
        clusters=clusters,
        text=draw(st.integers(0, 3)),
        text_first=draw(st.booleans()),
        multiple=draw(st.sampled_from([1, 1, 4, 16])),
    )


def head_slots(order: LabelOrder, b: int, h: int) -> list[int]:
    """Token of each slot of one head, -1 for none, without the filling that other heads need."""
    text = order.text
    first = text if order.text_first else 0
    slots = []
    for cluster in range(order.clusters):
        here = [
            first + token
            for token, label in enumerate(order.labels[b, h].tolist())
            if label == cluster
        ]
        slots += here + [-1] * (-len(here) % order.multiple)
    return slots


def all_slots(order: LabelOrder) -> list[list[list[int]]]:
    heads = [[head_slots(order, b, h) for h in range(order.heads)] for b in range(order.batch)]
    longest = max(len(slots) for batch in heads for slots in batch)
    text, labelled = order.text, order.labels.shape[2]
    own = list(range(text)) if order.text_first else list(range(labelled, labelled + text))
    filled = [[slots + [-1] * (longest - len(slots)) for slots in batch] for batch in heads]
    return [[own + s if order.text_first else s + own for s in batch] for batch in filled]


@settings(max_examples=50)
@given(orders(batch=2, heads=2), st.sampled_from(["bshd", "bhsd"]))
def test_label_order_sorts_and_undoes(order, layout):
    wanted = all_slots(order)
    assert order.slots.tolist() == wanted
    assert order.seqlen == len(wanted[0][0])
    axis = 1 if layout == "bshd" else 2
    x = torch.rand(2, 2, order.tokens, 3)
    x = x.transpose(1, 2) if layout == "bshd" else x
    there = order.apply(x, layout=layout)
    assert there.shape[axis] == order.seqlen
    for b in range(2):
        for h in range(2):
            for slot, token in enumerate(wanted[b][h]):
                got = there[b, slot, h] if axis == 1 else there[b, h, slot]
                own = x[b, token, h] if axis == 1 else x[b, h, token]
                assert torch.equal(got, torch.zeros(3) if token < 0 else own)
    assert torch.equal(order.undo(there, layout=layout), x)


@settings(max_examples=50)
@given(st.data(), st.sampled_from([1, 2]), block_sizes())
def test_svg2_is_its_definition(data, group, block_size):
    q_order = data.draw(orders(batch=2, heads=2))
    k_order = data.draw(orders(batch=2, heads=2 // group))
    seed = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    kept = torch.rand(2, 2, q_order.clusters, k_order.clusters, generator=seed) < 0.4
    plan = svg2(q_order, k_order, kept, block_size=block_size)
    wanted = torch.zeros(2, 2, q_order.seqlen, k_order.seqlen, dtype=torch.bool)
    q_slots, k_slots = all_slots(q_order), all_slots(k_order)
    for b in range(2):
        for h in range(2):
            for i, q in enumerate(q_slots[b][h]):
                for j, k in enumerate(k_slots[b][h // group]):
                    wanted[b, h, i, j] = keeps(q_order, k_order, kept, b, h, group, q, k)
    assert_plan(plan, wanted)


@settings(max_examples=20)
@given(orders(batch=1, heads=1), orders(batch=1, heads=1), st.integers(0, 2**31))
def test_free_rows_change_slots_without_a_token_only(q_order, k_order, seed):
    shape = (1, 1, q_order.clusters, k_order.clusters)
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    own, free = (
        svg2(q_order, k_order, kept, block_size=(16, 16), free_rows=flag).to_dense()[0, 0]
        for flag in (False, True)
    )
    holds = q_order.slots[0, 0] >= 0
    assert torch.equal(own[holds], free[holds])
    previous = torch.zeros_like(free[0]) if len(free) else None
    for row, slot in zip(free, q_order.slots[0, 0].tolist(), strict=True):
        assert slot >= 0 or torch.equal(row, previous) or not bool(row.any())
        previous = row


def keeps(q_order, k_order, kept, b, h, group, q, k) -> bool:
    if q < 0 or k < 0:
        return False
    row = q - (q_order.text if q_order.text_first else 0)
    column = k - (k_order.text if k_order.text_first else 0)
    if not 0 <= row < q_order.labels.shape[2] or not 0 <= column < k_order.labels.shape[2]:
        return True
    at = q_order.labels[b, h, row], k_order.labels[b, h // group, column]
    return bool(kept[b, h, at[0], at[1]])


def test_density_weighs_clusters_by_area():
    """One of four pairs of clusters, and 3 * 2 of 16 pairs of tokens."""
    q_order = LabelOrder(labels=torch.tensor([[[0, 1, 1, 1]]]), clusters=2)
    k_order = LabelOrder(labels=torch.tensor([[[1, 0, 1, 0]]]), clusters=2)
    plan = svg2(q_order, k_order, torch.tensor([[[[False, False], [True, False]]]]))
    assert plan.density == 6 / 16


def test_attention_does_not_depend_on_the_order():
    """Permute q by its labels, k and v by theirs, and undo on o: as the mask between tokens."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 60, 2, 16, dtype=torch.float64) for _ in range(3))
    q_order = LabelOrder(labels=torch.randint(5, (1, 2, 60)), clusters=5, multiple=8)
    k_order = LabelOrder(labels=torch.randint(7, (1, 2, 60)), clusters=7)
    kept = torch.rand(1, 2, 5, 7) < 0.5
    kept[..., 0] = True
    plan = svg2(q_order, k_order, kept, block_size=(16, 16))
    there = mp.attention(
        q_order.apply(q), k_order.apply(k), k_order.apply(v), plan, backend="reference"
    )
    out = q_order.undo(there)
    mask = kept.gather(2, q_order.labels[..., None].expand(1, 2, 60, 7)).gather(
        3, k_order.labels[:, :, None].expand(1, 2, 60, 60)
    )
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask
    ).transpose(1, 2)
    torch.testing.assert_close(out, wanted)


def test_permutation_cost_counts_bytes():
    grid = Grid(30, 48, 80)
    order = TokenOrder.tiles(grid, (4, 4, 4))
    cost = permutation_cost(order, batch=1, heads=24, head_dim=128)
    one = 115_200 * 24 * 128 * 2
    assert (cost.read, cost.written, cost.index) == (4 * one, 4 * one, 4 * 8 * 115_200)
    assert str(cost) == "reads 2700.0 MiB, writes 2700.0 MiB, indices 3.5 MiB"
    grouped = permutation_cost(order, batch=1, heads=24, head_dim=128, kv_heads=8)
    assert grouped.read == 2 * one + 2 * one // 3
    padded = TokenOrder.tiles(grid, (4, 4, 4), pad=True)
    assert permutation_cost(padded, batch=1, heads=24, head_dim=128).written > cost.written
    labels = LabelOrder(labels=torch.zeros(2, 3, 10, dtype=torch.int64), clusters=1)
    own = permutation_cost(labels, batch=2, heads=3, head_dim=4, dtype=torch.float32)
    assert (own.read, own.total) == (4 * 2 * 3 * 10 * 4 * 4, 2 * own.read + 4 * 8 * 6 * 10)


ORDER = LabelOrder(labels=torch.zeros(1, 2, 4, dtype=torch.int64), clusters=3)
BAD = {
    "label": (
        lambda: LabelOrder(labels=torch.tensor([[[0, 3]]]), clusters=3),
        mp.PlanError,
        ("labels[0, 0, 1]", "got 3", "0 <= label < 3"),
    ),
    "float labels": (
        lambda: LabelOrder(labels=torch.zeros(1, 1, 2), clusters=3),
        mp.PlanTypeError,
        ("labels", "float32"),
    ),
    "tokens": (
        lambda: ORDER.apply(torch.zeros(1, 5, 2, 8)),
        mp.PlanError,
        ("x", "[1, 5, 2, 8]", "4 tokens"),
    ),
    "layout": (
        lambda: ORDER.apply(torch.zeros(1, 4, 2, 8), layout="sbhd"),
        mp.PlanError,
        ("layout", "'sbhd'", "'bshd'"),
    ),
    "clusters": (
        lambda: svg2(ORDER, ORDER, torch.ones(1, 2, 3, 4, dtype=torch.bool)),
        mp.PlanError,
        ("kept", "key clusters", "got 4", "wanted 3"),
    ),
    "heads": (
        lambda: svg2(ORDER, ORDER, torch.ones(1, 3, 3, 3, dtype=torch.bool)),
        mp.PlanError,
        ("heads of the queries", "got 3", "wanted 2"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, parts = BAD[name]
    with pytest.raises(error) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == []
