"""How a plan's keys are read, in blocks, tiles or tokens: as is measured, never claimed."""

import numpy as np
import torch

import maskplan as mp
from maskplan.attention import cpu
from maskplan.attention.facts import asked_of
from maskplan.lower.contiguity import Contiguity, contiguity
from tests.attention.token_calls import Call, assert_gate, random_lists


def test_the_form_follows_what_is_measured():
    """128 of 4,096 keys: alone, in blocks of 128, and one list for all queries of a Q block."""
    apart = mp.from_topk(random_lists((1, 1, 256), 128, 4096), 4096)
    starts = random_lists((1, 1, 256), 1, 32)[..., None] * 128
    whole = mp.from_topk((starts + torch.arange(128)).flatten(3), 4096)
    shared = random_lists((1, 1, 2), 128, 4096).repeat_interleave(128, 2)
    alike = mp.from_topk(shared, 4096)
    assert apart.lower("cpu").form == "tokens"
    assert alike.lower("cpu").form == "tiles"
    assert whole.lower("cpu").form in ("blocks", "tokens")  # a block a query, of 32 listed
    aligned = mp.from_topk(
        (starts[:, :, :1] + torch.arange(128)).flatten(3).expand(1, 1, 256, 128), 4096
    )
    assert aligned.lower("cpu").form == "blocks"
    found = contiguity(apart)
    assert (found.tokens, found.blocks) == (256 * 128, 256 * 4096)
    assert str(found) == "32,768 of 1,048,576 pairs in blocks (3.12%) are selected"
    assert "keys by tokens" in repr(apart.lower("cpu"))
    assert "keys by tokens: 32,768 of 1,048,576 pairs" in str(mp.verify(apart, head_dim=16))


def test_what_is_measured_is_what_loops_count():
    """Pairs in blocks, of unions of Q blocks and selected, with ragged ends, by loops."""
    indices = random_lists((2, 1, 70), 5, 90)
    indices[1, 0, 3:9] = -1
    plan = mp.from_topk(indices, 90, block_size=(32, 16))
    want = np.zeros(3, dtype=int)
    for b in range(2):
        for top in range(0, 70, 32):
            rows = [
                {key for key in row if key >= 0} for row in indices[b, 0, top : top + 32].tolist()
            ]
            union = set().union(*rows)
            for block in {key // 16 for key in union}:
                want[0] += len(rows) * min(16, 90 - 16 * block)
            want[1] += len(rows) * len(union)
            want[2] += sum(map(len, rows))
    found = contiguity(plan)
    assert [found.blocks, found.tiles, found.tokens] == want.tolist()
    twice = contiguity(plan, torch.tensor([[0, 0], [1, 1]]))
    assert twice.tokens == 2 * found.tokens


def test_many_heads_of_a_list_make_gathering_cheaper():
    """A third of the pairs in blocks are selected: too many for one row a list, not for 64."""
    found = Contiguity(blocks=300, tiles=300, tokens=100, block_size=(128, 128))
    assert (found.form(1), found.form(64)) == ("blocks", "tokens")


def test_a_cache_lowers_for_the_heads_of_the_call():
    """The same plan: walked in blocks for one head, gathered for 64 that share its lists."""
    plan = mp.from_topk(random_lists((1, 1, 64), 340, 1000), 1000)
    assert plan.lower("cpu").form == "blocks"
    for heads, form in ((1, "blocks"), (64, "tokens")):
        call = Call(random_lists((1, 1, 64), 340, 1000), 1000, heads=heads, kv_heads=1)
        asked = asked_of(call.q, call.k, call.v, plan, backward="auto")
        assert cpu.lowering(asked).of(plan).form == form
        found = call.run(plan, cache=mp.PlanCache())
        assert_gate(found, call.expected(), torch.float32)
