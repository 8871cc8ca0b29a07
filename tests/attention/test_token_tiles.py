"""Gathered attention, from token tiles and from plans of tokens, against loops over the lists."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskplan as mp
from tests import strategies
from tests.attention.token_calls import BACKENDS, FORMS, Call, assert_gate, random_lists


@settings(max_examples=60)
@given(
    strategies.token_topk(),
    st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)]),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    st.sampled_from([(16, 16), (5, 33), (40, 24)]),
    st.data(),
)
def test_tiles_and_plans_are_what_loops_over_lists_say(topk, groups, dtype, dims, data):
    """-1 anywhere, duplicates, tails, empty rows, strides, batches and heads that differ."""
    indices = topk.indices
    if topk.lengths is not None:
        beyond = torch.arange(indices.shape[3]) >= topk.lengths[..., None]
        indices = indices.masked_fill(beyond, -1)
    batch, heads, _, _ = indices.shape
    seqlen_k = topk.geometry.seqlen_k
    group, repeats = groups  # heads of a KV head; query heads that a list has
    per_list = group if repeats == 1 else 1
    call = Call(
        indices, seqlen_k, heads=heads * group, kv_heads=heads, batch=batch, dims=dims,
        dtype=dtype, seed=data.draw(st.integers(0, 99)),
    )  # fmt: skip
    expected = call.expected()
    plan = mp.from_topk(indices, seqlen_k, block_size=topk.geometry.block_size)
    tiles = mp.TokenTiles.from_topk(
        indices, seqlen_k, policy="union", group=per_list, max_coverage=1.0
    )
    backend = data.draw(st.sampled_from(BACKENDS))
    if dtype in (torch.bfloat16, torch.float16):
        backend = "cpu"
    ran = data.draw(st.sampled_from([tiles, tiles.lower(), plan, *FORMS]))
    if isinstance(ran, str):
        ran = call.forced(plan, ran)
    assert_gate(call.run(ran, backend), expected, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("topk", [3, 60])  # lists of a few of a tile's keys, and of many
def test_heads_of_a_group_may_have_lists_of_their_own(topk, backend):
    indices = random_lists((2, 4, 70), topk, 200)
    call = Call(indices, 200, heads=4, kv_heads=2, batch=2)
    tiles = mp.TokenTiles.from_topk(
        indices, 200, policy="union", group=2, kv_heads=2, max_coverage=1.0
    )
    assert tiles.lists_per_token == 2
    assert_gate(call.run(tiles, backend), call.expected(), torch.float32)
    assert_gate(call.run(mp.from_topk(indices, 200), backend), call.expected(), torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_representative_attends_the_first_rows_list_in_every_row(backend):
    indices = random_lists((1, 2, 300), 9, 128)
    tiles = mp.TokenTiles.from_topk(indices, 128, policy="representative")
    first = indices[:, :, [0, 128, 256]].repeat_interleave(128, dim=2)[:, :, :300]
    call = Call(first, 128, heads=2, kv_heads=2)
    assert tiles.form == "tokens"
    assert_gate(call.run(tiles, backend), call.expected(), torch.float32)


def test_whole_blocks_run_as_blocks():
    indices = (torch.tensor([[0, 2], [1, 3]])[..., None] * 128 + torch.arange(128)).flatten(1)
    indices = indices.repeat_interleave(128, 0)[None, None]
    tiles = mp.TokenTiles.from_topk(indices, 500 + 12)
    call = Call(indices, 512, heads=2, kv_heads=1)
    assert tiles.form == "blocks"
    assert tiles.lower().form == "blocks"
    assert_gate(call.run(tiles), call.expected(), torch.float32)


def test_the_gate_sees_one_wrong_key_and_one_wrong_head():
    indices = random_lists((1, 1, 16), 128, 512)
    call = Call(indices, 512, heads=128, kv_heads=1, dims=(64, 64))
    expected, tiles = call.expected(), mp.TokenTiles.from_topk(indices, 512, group=128)
    lowered = tiles.lower()
    assert_gate(call.run(lowered), expected, torch.float32)
    keys = lowered.gathered.keys.clone()
    keys[5] = (keys[5] + 1) % 512
    wrong = replace(lowered, gathered=replace(lowered.gathered, keys=keys))
    with pytest.raises(AssertionError):
        assert_gate(call.run(wrong), expected, torch.float32)
    found = call.run(lowered)
    found["out"][:, :, 77] = torch.nan
    with pytest.raises(AssertionError):
        assert_gate(found, expected, torch.float32)
