"""Attention of token tiles that a device made: what is read, what is lowered, what is raised."""

from contextlib import contextmanager

import pytest
import torch

import maskplan as mp
from maskplan.attention import sm100_gathered
from maskplan.attention.call import AttentionCall
from maskplan.errors import PlanError, PlanTypeError
from maskplan.lower.lowered import moved
from tests.device.planning import generator, on_the_cpu
from tests.device.test_token_tiles import block_lists, both, random_lists
from tests.kernels.gather.test_tables import dense


def call_of(place, tiles, heads, kv_heads, lists):
    """(q, k, v) noise for tiles, on the device."""
    noise = generator(13)
    shapes = ((tiles.seqlen_q, heads), (tiles.seqlen_k, kv_heads), (tiles.seqlen_k, kv_heads))
    return [torch.randn(lists, *shape, 64, generator=noise).to(place) for shape in shapes]


@pytest.mark.parametrize("policy", ["union", "representative"])
def test_attention_reads_tables_of_a_device(place, policy):
    """What is gathered where the tables are exact; `lower` makes views of them."""
    indices = random_lists((2, 1, 5), 9, 40)
    made, wanted = both(place, indices, 40, policy=policy, group=64, max_coverage=1.0)
    q, k, v = call_of(place, made, 64, 1, 2)
    expected = mp.attention(q.cpu(), k.cpu(), v.cpu(), wanted, backend="reference")
    for plan in (made, made.lower()):
        for backend in ("reference", "cpu") if place.type == "cpu" else ("reference",):
            found = mp.attention(q, k, v, plan, backend=backend)
            torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-5)
    keys = made.lower().gathered.keys
    assert keys.data_ptr() == made.tile_token_indices.data_ptr()
    assert keys.device == place


def test_a_plan_of_tables_of_a_device(place):
    indices = random_lists((1, 2, 5), 9, 200)
    made, wanted = both(place, indices, 200, policy="union", group=32, max_coverage=1.0)
    plan = made.to_plan()
    with on_the_cpu():
        assert plan.cpu() == wanted.to_plan()


def test_what_a_device_recorded_is_raised_where_lowered_tiles_come_to_the_cpu(place):
    indices = torch.arange(10).view(1, 1, 2, 5).int()
    made = mp.TokenTiles.from_topk(indices.to(place), 100, group=64, form="tokens")
    with pytest.raises(PlanError, match="queries of a tile select different keys"):
        moved(made.lower(), torch.device("cpu"))
    alike = mp.TokenTiles.from_topk(indices[:, :, :1].to(place), 100, group=64, form="tokens")
    assert moved(alike.lower(), torch.device("cpu")).gathered.status is None


def test_blocks_of_a_device_are_lowered_for_a_target(place):
    made = mp.TokenTiles.from_topk(block_lists([[0]], 300).to(place), 300, form="blocks")
    with pytest.raises(PlanTypeError, match=r"pass the tiles to attention, or tiles\.to_plan\(\)"):
        made.lower()


@contextmanager
def nothing_waits(place):
    """Waiting for a GPU raises."""
    if place.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if place.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("policy", ["union", "representative"])
def test_tables_for_sm100_are_made_without_waiting(place, policy):
    """From lists to what the gathered kernels walk; read back, they are the CPU's.

    Tiles of the CPU are put together from the tokens of rows, and may be of more rows.
    """
    indices = random_lists((1, 1, 30), 40, 300, seed=14)
    given, options = indices.to(place), {"policy": policy, "group": 8, "max_coverage": 1.0}
    made, wanted = both(place, indices, 300, **options)  # and compiles
    q, k, _ = (x.bfloat16() for x in call_of(place, made, 8, 1, 1))
    with nothing_waits(place):
        made = mp.TokenTiles.from_topk(given, 300, form="tokens", **options)
        call = AttentionCall(q=q, k=k, v=k, lowered=made.lower(), scale=1.0)
        tables = sm100_gathered.tables(call)
        sm100_gathered.backward_tables(call)
    here = AttentionCall(q=q.cpu(), k=k.cpu(), v=k.cpu(), lowered=wanted.lower(), scale=1.0)
    tables = {name: table.cpu() for name, table in tables.items()}
    there = dense(call, tables, sm100_gathered.forward_config(call))
    assert (there == dense(here, sm100_gathered.tables(here),
                           sm100_gathered.forward_config(here))).all()  # fmt: skip
