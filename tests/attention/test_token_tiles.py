"""Gathered attention, from token tiles and from plans of tokens, against loops over the lists."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import maskplan as mp
from maskplan.attention import cpu
from maskplan.attention.facts import asked_of
from maskplan.lower.contiguity import Contiguity, contiguity
from maskplan.lower.gathered import Reading, gathered
from tests import strategies
from tests.attention.loops import Expected
from tests.attention.problems import TOLERANCE
from tests.attention.token_oracle import attend_lists, lists_of

BACKENDS = ("cpu", "reference")
FORMS = ("blocks", "tiles", "tokens")


class Call:
    """Noise for lists, and the results of whatever runs them, [B, S, H, F]."""

    def __init__(
        self,
        indices: Tensor,
        seqlen_k: int,
        *,
        heads: int,
        kv_heads: int,
        batch: int = 1,
        dims: tuple[int, int] = (16, 16),
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        noise = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=noise).to(dtype)

        seqlen_q = indices.shape[2]
        self.indices, self.dtype = indices, dtype
        self.q = draw(batch, seqlen_q, heads, dims[0])
        self.k, self.v = (
            draw(batch, seqlen_k, kv_heads, dims[0]),
            draw(batch, seqlen_k, kv_heads, dims[1]),
        )
        self.dout = draw(batch, seqlen_q, heads, dims[1])
        self.dlse = torch.randn(batch, heads, seqlen_q, generator=noise)

    def expected(self) -> Expected:
        lists = lists_of(self.indices)
        scale = self.q.shape[3] ** -0.5
        return attend_lists(self.q, self.k, self.v, lists, scale, self.dout, self.dlse)

    def run(self, plan: object, backend: str = "cpu", **options: object) -> dict[str, Tensor]:
        q, k, v = (x.detach().requires_grad_() for x in (self.q, self.k, self.v))
        out, lse = mp.attention(q, k, v, plan, backend=backend, return_lse=True, **options)
        dq, dk, dv = torch.autograd.grad((out, lse), (q, k, v), (self.dout, self.dlse))
        return {"out": out.detach(), "lse": lse.detach(), "dq": dq, "dk": dk, "dv": dv}

    def forced(self, plan: mp.Plan, form: str) -> mp.LoweredPlan:
        """`plan` with its keys read in one form, whichever is cheaper."""
        lists = None if form == "blocks" else gathered(plan, form)
        return replace(plan.lower("cpu"), reading=Reading.of(lists))


def assert_gate(found: dict[str, Tensor], expected: Expected, dtype: torch.dtype) -> None:
    """The one gate: every number of every (batch, head) within the rounding of its dtype.

    Never a share of them: one head of 128 that is NaN would be 0.8 % of the numbers.
    """
    for name, tensor in found.items():
        right, values = getattr(expected, name), tensor.double().numpy()
        assert values.shape == right.shape, name
        if name == "lse":
            right, values = right[..., None].swapaxes(1, 2), values[..., None].swapaxes(1, 2)
        limit = TOLERANCE[torch.float32 if name == "lse" and dtype == torch.float64 else dtype]
        finite = np.isfinite(right)
        np.testing.assert_array_equal(values[~finite], right[~finite], err_msg=name)
        right, values = np.where(finite, right, 0), np.where(finite, values, 0)
        size = np.abs(right).max(axis=(1, 3), initial=1.0)
        worst = np.abs(values - right).max(axis=(1, 3), initial=0.0) / size
        assert (worst <= limit).all(), f"{name}: {worst.max():.2e} of the largest in a head"


def random_lists(shape: tuple[int, ...], topk: int, seqlen_k: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, seqlen_k, generator=generator).argsort(-1)[..., :topk].int()


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


# How a plan's keys are read.


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


# The seed's sweeps, at the sizes that its GPU tests have.


def tile_lists(
    shape: tuple[int, int, int], rows: int, topk: int, seqlen_k: int, kbs: int
) -> Tensor:
    """Random lists of topk keys, of single tokens or of blocks of `kbs`, one a tile of `rows`."""
    batch, heads, seqlen_q = shape
    tiles = -(-seqlen_q // rows)
    starts = random_lists((batch, heads, tiles), topk // kbs, seqlen_k // kbs, seed=topk)
    keys = (starts[..., None] * kbs + torch.arange(kbs, dtype=torch.int32)).flatten(3)
    return keys.repeat_interleave(rows, 2)[:, :, :seqlen_q]


CLASSIC = [
    (seqlen_q, seqlen_k, topk, (128, 1), 128, 1)
    for seqlen_q in (128, 512, 1024)
    for seqlen_k in (512, 1024, 4096)
    for topk in (128, 256)
]
HEADS = [(128, 1), (64, 1), (32, 1), (16, 1), (4, 4), (8, 2), (4, 1), (16, 16)]
COMPREHENSIVE = [(256, 512, 128, heads, dim, 1) for heads in HEADS for dim in (64, 128)] + [
    (256, 4096, 256, heads, 128, 128) for heads in HEADS if heads[1] == 1
]
PARTIAL = [(256, 512, topk, (16, 1), 128, 1) for topk in (1, 31, 100, 200, 511)]


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "topk", "heads", "dim", "kbs"), CLASSIC + COMPREHENSIVE + PARTIAL
)
def test_the_sweeps_of_a_public_pull_request(seqlen_q, seqlen_k, topk, heads, dim, kbs):
    """Classic, comprehensive and partial top-k with random lists a tile of 128 packed rows.

    In float32, and by one gate for every tensor of every case: no share of mismatches.
    """
    heads, kv_heads = heads
    group = heads // kv_heads
    rows = max(128 // group, 1)
    indices = tile_lists((1, kv_heads, seqlen_q), rows, topk, seqlen_k, kbs)
    call = Call(indices, seqlen_k, heads=heads, kv_heads=kv_heads, dims=(dim, dim))
    tiles = mp.TokenTiles.from_topk(indices, seqlen_k, group=group)
    assert tiles.form == ("tokens" if kbs == 1 else "blocks")
    assert_gate(call.run(tiles), call.expected(), torch.float32)


@pytest.mark.parametrize("heads", HEADS)
def test_random_lists_of_each_query_in_bfloat16(heads):
    """Lists of their own a token: by a union with bits, and by the plan."""
    heads, kv_heads = heads
    indices = random_lists((1, kv_heads, 64), 40, 300)
    call = Call(indices, 300, heads=heads, kv_heads=kv_heads, dims=(64, 64), dtype=torch.bfloat16)
    expected = call.expected()
    tiles = mp.TokenTiles.from_topk(
        indices, 300, policy="union", group=heads // kv_heads, max_coverage=1.0
    )
    assert_gate(call.run(tiles), expected, torch.bfloat16)
    assert_gate(call.run(mp.from_topk(indices, 300)), expected, torch.bfloat16)


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


# What nobody selects.


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("policy", ["uniform", "union"])
def test_poison_in_keys_that_nobody_selects_changes_no_bit(policy, value, backend):
    """Keys 1, 3, 5, ... hold NaN or infinity, in K and in V; a tile of `union` gathers none."""
    indices = 2 * random_lists((1, 2, 1 if policy == "uniform" else 70), 20, 100)
    indices = indices.expand(1, 2, 70, 20)
    tiles = mp.TokenTiles.from_topk(indices, 200, policy=policy, max_coverage=1.0)
    plan = mp.from_topk(indices, 200)
    clean = Call(indices, 200, heads=4, kv_heads=2)
    for ran in (tiles, plan, *(clean.forced(plan, form) for form in FORMS)):
        dirty = Call(indices, 200, heads=4, kv_heads=2)
        dirty.k[:, 1::2], dirty.v[:, 1::2] = value, value
        found, wanted = dirty.run(ran, backend), clean.run(ran, backend)
        for name, tensor in wanted.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
        assert (found["dk"][:, 1::2] == 0).all()
        assert (found["dv"][:, 1::2] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_poison_that_one_query_of_a_tile_selects_reaches_it_alone(value, backend):
    """A tile's union holds the key; every other query has it masked by a bit."""
    indices = random_lists((1, 1, 128), 30, 64)
    indices[indices == 7] = -1
    indices[0, 0, 5, 0] = 7
    tiles = mp.TokenTiles.from_topk(indices, 64, policy="union", max_coverage=1.0)
    call = Call(indices, 64, heads=2, kv_heads=1)
    call.k[:, 7], call.v[:, 7] = value, value
    for ran in (tiles, mp.from_topk(indices, 64), call.forced(mp.from_topk(indices, 64), "tiles")):
        found = call.run(ran, backend)
        others = [row for row in range(128) if row != 5]
        assert found["out"][:, others].isfinite().all()
        assert found["dq"][:, others].isfinite().all()
        assert not found["out"][:, 5].isfinite().any()
        reached = indices[0, 0, 5]
        alone = [key for key in range(64) if key not in reached.tolist()]
        assert found["dk"][:, alone].isfinite().all()
        assert found["dv"][:, alone].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_without_a_key_give_zeros(backend):
    indices = torch.full((1, 1, 200, 16), -1)
    call = Call(indices, 90, heads=2, kv_heads=1)
    for ran in (
        mp.TokenTiles.from_topk(indices, 90, policy="union", group=2),
        mp.from_topk(indices, 90),
    ):
        found = call.run(ran, backend)
        assert (found["lse"] == -torch.inf).all()
        for name in ("out", "dq", "dk", "dv"):
            assert (found[name] == 0).all()
    indices[0, 0, 131] = torch.arange(16)  # one of them, in the second tile
    call = Call(indices, 90, heads=2, kv_heads=1)
    tiles = mp.TokenTiles.from_topk(indices, 90, policy="union", group=2)
    assert_gate(call.run(tiles, backend), call.expected(), torch.float32)


@pytest.mark.parametrize("sentinel", strategies.NASTY)
def test_hostile_sentinels_are_refused(sentinel):
    """What other producers pad with is no -1: an error that names the slot, never a wrong key."""
    indices = random_lists((1, 1, 9), 4, 64)
    indices[0, 0, 8, 3] = sentinel
    with pytest.raises(mp.PlanError, match=r"b=0, h=0, row=8, slot=3"):
        mp.TokenTiles.from_topk(indices, 64, policy="union", max_coverage=1.0)
    with pytest.raises(mp.PlanError, match=r"b=0, h=0, row=8, slot=3"):
        mp.from_topk(indices, 64)


def test_sentinels_of_flashmla_are_imported_by_name():
    """FlashMLA marks no key by anything out of range, and with lengths by what lies beyond."""
    indices = random_lists((1, 1, 9), 6, 64)
    foreign = indices[0].transpose(0, 1).clone()  # [SQ, heads, topk]
    foreign[:, :, 4:] = 2_147_480_000
    indices[..., 4:] = -1
    plan = mp.interop.flashmla.from_indices(foreign, 64)
    assert plan.to_dense().equal(mp.from_topk(indices, 64).to_dense())


# Gradients, and everything around a call.


@pytest.mark.parametrize("policy", ["uniform", "union"])
@pytest.mark.parametrize("topk", [2, 12])
def test_gradients_by_finite_differences(policy, topk):
    indices = random_lists((1, 1, 1 if policy == "uniform" else 5), topk, 20).expand(1, 1, 5, topk)
    tiles = mp.TokenTiles.from_topk(indices, 20, policy=policy, group=2, max_coverage=1.0).lower()
    noise = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(1, tokens, heads, 3, generator=noise, dtype=torch.float64).requires_grad_()
        for tokens, heads in ((5, 2), (20, 1), (20, 1))
    )
    packed = tiles.packed
    for backend in BACKENDS:
        rest = (list(packed.tensors), packed.spec, backend, 0.5, "bshd", "auto", False)
        assert torch.autograd.gradcheck(
            lambda q, k, v, rest=rest: torch.ops.maskplan.attention(q, k, v, *rest), (q, k, v)
        )


def test_equal_calls_give_equal_bits_through_the_operator_too():
    indices = random_lists((1, 2, 150), 30, 400)
    call = Call(indices, 400, heads=8, kv_heads=2, dims=(32, 32))
    lowered = mp.TokenTiles.from_topk(
        indices, 400, policy="union", group=4, max_coverage=1.0
    ).lower()
    first, again = call.run(lowered), call.run(lowered, deterministic=True)
    for name, tensor in first.items():
        assert tensor.equal(again[name]), name
    packed = lowered.packed
    out, lse = torch.ops.maskplan.attention(
        call.q, call.k, call.v, list(packed.tensors), packed.spec, "cpu", 32**-0.5, "bshd", "auto",
        False,
    )  # fmt: skip
    assert out.equal(first["out"])
    assert lse.equal(first["lse"])


def test_a_cache_keeps_tiles_by_the_object_and_lowers_overwritten_ones_again():
    indices = random_lists((1, 1, 40), 9, 90)
    call = Call(indices, 90, heads=2, kv_heads=1)
    tiles = mp.TokenTiles.from_topk(indices, 90, policy="union", max_coverage=1.0)
    for cache in (mp.PlanCache(), mp.PlanCache(by="digest")):
        call.run(tiles, cache=cache)
        assert_gate(call.run(tiles, cache=cache), call.expected(), torch.float32)
        assert (cache.stats.misses, cache.stats.hits) == (1, 1)
        tiles.valid_counts.mul_(1)
        call.run(tiles, cache=cache)
        assert cache.stats.misses == 2


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_layouts_and_one_and_several_threads(layout):
    indices = random_lists((1, 1, 100), 50, 300)
    call = Call(indices, 300, heads=4, kv_heads=1, dims=(64, 64))
    tiles = mp.TokenTiles.from_topk(indices, 300, policy="union", group=4, max_coverage=1.0)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            q, k, v = call.q, call.k, call.v
            if layout == "bhsd":
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            out = mp.attention(q, k, v, tiles, layout=layout)
            out = out.transpose(1, 2) if layout == "bhsd" else out
            assert_gate({"out": out}, call.expected(), torch.float32)
    finally:
        torch.set_num_threads(before)


def test_verify_takes_tiles():
    indices = random_lists((1, 2, 150), 30, 400)
    for policy in ("union", "representative"):
        tiles = mp.TokenTiles.from_topk(indices, 400, policy=policy, group=4, max_coverage=1.0)
        for ran in BACKENDS:
            report = mp.verify(tiles, ran, head_dim=16)
            assert report.ok, report
            assert "8 heads over 2" in str(report)


def test_what_does_not_fit_tiles_is_refused():
    indices = random_lists((1, 2, 40), 9, 90)
    tiles = mp.TokenTiles.from_topk(indices, 90, policy="union", group=4, max_coverage=1.0)
    q, k = torch.randn(1, 40, 4, 8), torch.randn(1, 90, 2, 8)
    with pytest.raises(mp.UnsupportedError, match="packed groups of 4 heads, not 2"):
        mp.attention(q, k, k, tiles)
    with pytest.raises(mp.PlanError, match=r"got 41 tokens, wanted 40 tokens"):
        mp.attention(torch.randn(1, 41, 8, 8), k, k, tiles)
    with pytest.raises(mp.PlanError, match="plan has another number of heads"):
        mp.attention(torch.randn(1, 40, 4, 8), k[:, :, :1], k[:, :, :1], tiles)
    with pytest.raises(mp.PlanError, match="lowered token tiles are no plan"):
        mp.verify(tiles.lower())
    with pytest.raises(mp.UnsupportedError, match='no plan that is lowered for "tokens"'):
        mp.attention(torch.randn(1, 40, 8, 8), k, k, tiles, backend="flex")


def test_a_table_of_tokens_has_one_backward():
    indices = random_lists((1, 1, 40), 9, 90)
    call = Call(indices, 90, heads=2, kv_heads=1)
    tiles = mp.TokenTiles.from_topk(indices, 90, policy="union", form="tokens", max_coverage=1.0)
    for plan in (tiles, tiles.lower()):
        with pytest.raises(mp.UnsupportedError, match="by loop_k, and loop_q is wanted"):
            call.run(plan, backward="loop_q")
        assert_gate(call.run(plan, backward="loop_k"), call.expected(), call.dtype)
        with torch.no_grad():  # where no gradient is wanted, it says nothing about the call
            mp.attention(call.q, call.k, call.v, plan, backward="loop_q")


def test_tiles_in_a_compiled_region_are_lowered_outside():
    indices = random_lists((1, 1, 40), 9, 90)
    call = Call(indices, 90, heads=2, kv_heads=1)
    tiles = mp.TokenTiles.from_topk(indices, 90, policy="union", max_coverage=1.0)
    lowered = tiles.lower()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def attend(q: Tensor, k: Tensor, v: Tensor, plan: mp.LoweredPlan) -> Tensor:
        return mp.attention(q, k, v, plan)

    found = attend(call.q, call.k, call.v, lowered)
    assert found.equal(mp.attention(call.q, call.k, call.v, tiles))
