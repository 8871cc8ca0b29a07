"""Planning in the middle of a transform of torch.func: see NOTE [Transforms and tables]."""

# ruff: noqa: ARG005 - all take what one of them needs

import inspect

import pytest
import torch

import maskplan as mp
from maskplan.untransformed import untransformed

BLOCKS = (16, 16)
SCORES = torch.rand(1, 1, 64, 64, generator=torch.Generator().manual_seed(1))
MASK = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(2)) > 0.4
PLAN = mp.documents([700, 300])
ORDER = torch.arange(64).flip(0)
VMAPPED = (
    "got a vmapped tensor, wanted one value, as a plan serves all of an axis; make the plan "
    "outside of the transform, or pass in_dims=None for it."
)


def picked(scores):
    return scores.topk(5).indices


def mask_blocks(fn):
    none, one = torch.zeros(4, dtype=torch.int32), torch.ones(4, dtype=torch.int32)
    blocks = torch.arange(4, dtype=torch.int32).view(4, 1)
    return mp.from_block_lists(
        none, blocks, 64, 64, block_size=BLOCKS, mask_cnt=one, mask_idx=blocks, mask_fn=fn
    )


# Of a number 1.0 that the transform wraps, as everything that is computed from it.
PLANS = {
    "from_topk": lambda one: mp.from_topk(picked(SCORES * one), 64, block_size=BLOCKS),
    "lengths": lambda one: mp.from_topk(
        picked(SCORES), 64, block_size=BLOCKS, lengths=torch.full((1, 1, 64), 3) * one.long()
    ),
    "from_block_mask": lambda one: mp.from_block_mask(
        MASK & (one > 0), seqlen_q=64, seqlen_k=60, block_size=BLOCKS
    ),
    "from_token_mask": lambda one: mp.from_token_mask(SCORES * one > 0.7, block_size=BLOCKS),
    "from_mask_fn": lambda one: mp.from_mask_fn(lambda b, h, q, k: (q >= k) & (one > 0), 64, 50),
    "mask_fn of blocks": lambda one: mask_blocks(lambda b, h, q, k: (ORDER[q] >= k) & (one > 0)),
    "documents": lambda one: mp.documents([3 * one.long(), 4 * one.long()]),
    "ranges": lambda one: mp.from_cu_seqlens(torch.tensor([0, 3, 9]) * one.long(), [0, 4, 9]),
    "window": lambda one: mp.sliding_window(64, 64, left=3, right=0),
    "algebra": lambda one: (PLAN & mp.causal(1000, 1000, align="top_left")) - PLAN.crop(),
    "transpose": lambda one: PLAN.transpose(),
    "reblock": lambda one: PLAN.reblock((64, 32)).canonical(),
    "shard": lambda one: PLAN.with_heads(4).shard("q", 0, 2),
    "pattern": lambda one: mp.video.radial(mp.video.Grid(4, 4, 8), decay=0.5),
    "selection": lambda one: mp.select.top_k(
        SCORES[..., :4, :4] * one, 2, seqlen_q=64, seqlen_k=64, block_size=BLOCKS, empty="allow"
    ),
    "tiles": lambda one: mp.TokenTiles.from_topk(
        picked(SCORES * one), 64, policy="union", max_coverage=1.0
    ).to_plan(),
    "tiles of a plan": lambda one: PLAN.token_tiles(
        "cpu", policy="union", max_coverage=1.0
    ).to_plan(),
}
"""Every way in, and what is made of plans."""


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_made_in_the_middle_of_a_gradient(name, twice):
    make = PLANS[name]
    made = []

    def loss(one):
        made.append(make(one))
        return one * one

    gradient = torch.func.grad(torch.func.grad(loss) if twice else loss)

    assert gradient(torch.tensor(1.0)) == 2
    assert made[0] == make(torch.tensor(1.0))
    assert made[0].validate().digest == make(torch.tensor(1.0)).digest


def test_what_is_read_off_a_plan_and_its_lists_there():
    def read(one):
        lists = mp.BlockSparseTensors.from_topk(picked(SCORES * one), 64, block_size=BLOCKS)
        seen.append((str(PLAN), repr(PLAN.stats()), PLAN.to_dense(), lists.mask_block_idx,
                     PLAN.transpose().block_sparse_tensors().dq_write_order))  # fmt: skip
        return one

    seen = []
    torch.func.grad(read)(torch.tensor(1.0))
    read(torch.tensor(1.0))

    (text, stats, *tensors), (wanted_text, wanted_stats, *wanted) = seen
    assert (text, stats) == (wanted_text, wanted_stats)
    for tensor, other in zip(tensors, wanted, strict=True):
        assert torch.equal(tensor, other)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("from_topk", lambda x: mp.from_topk(picked(x), 64)),
        ("from_topk", lambda x: mp.BlockSparseTensors.from_topk(picked(x), 64).full_block_cnt),
        ("from_topk", lambda x: mp.TokenTiles.from_topk(picked(x), 64).valid_counts),
        ("from_token_mask", lambda x: mp.from_token_mask(x > 0)),
        ("from_topk", lambda x: mp.from_topk(picked(SCORES), seqlen_k=x[0, 0, 0, 0].long())),
        ("documents", lambda x: mp.documents([3, x[0, 0, 0, 0].long()])),
        ("a mask function", lambda x: mp.from_mask_fn(lambda b, h, q, k: x[0, 0, q, k] > 0, 9, 9)),
        ("a mask function", lambda x: mask_blocks(lambda b, h, q, k: x[0, 0, q, k] > 0)),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_vmapped_tensor_has_no_plan(name, make, inside):
    many = SCORES.expand(3, -1, -1, -1, -1)
    mapped = torch.vmap(make)

    def loss(x):
        mapped(x)
        return x.sum()

    with pytest.raises(mp.UnsupportedError) as caught:
        torch.func.grad(loss)(many) if inside else mapped(many)

    assert str(caught.value) == f"transform is not supported in {name}: {VMAPPED}"


def test_a_functionalized_tensor_has_no_plan():
    with pytest.raises(mp.UnsupportedError, match="from_topk: got a functionalized tensor"):
        torch.func.functionalize(lambda x: mp.from_topk(picked(x), 64).to_dense())(SCORES)


def test_a_mask_function_under_vmap_that_captures_nothing_of_it():
    """Its own vmaps must not be taken for the one around it."""
    found = torch.vmap(
        lambda x: mp.from_mask_fn(lambda b, h, q, k: ORDER[q] >= ORDER[k], 64, 64).to_dense() * x
    )(torch.tensor([1, 2]))

    wanted = mp.from_mask_fn(lambda b, h, q, k: ORDER[q] >= ORDER[k], 64, 64).to_dense()
    assert torch.equal(found, torch.stack([wanted * 1, wanted * 2]))


def test_transforms_are_back_after_an_error():
    @untransformed
    def fails():
        raise ValueError("inside")

    def loss(x):
        with pytest.raises(ValueError, match="inside"):
            fails()
        return x * x

    assert torch.func.grad(loss)(torch.tensor(3.0)) == 6


def test_every_public_function_that_makes_a_plan_leaves_transforms():
    spaces = (mp, mp.video, mp.select)
    made = [
        function
        for space in spaces
        for function in (getattr(space, name) for name in space.__all__)
        if inspect.isfunction(function) and function.__annotations__["return"] is mp.Plan
    ]
    methods = [
        method
        for method in vars(mp.Plan).values()
        if inspect.isfunction(method) and "Plan" in str(method.__annotations__.get("return"))
    ]

    assert len(made) > 25
    assert len(methods) > 7
    missing = [f.__qualname__ for f in made + methods if not hasattr(f, "__wrapped__")]
    assert missing == ["Plan.lower"]  # a delegate of what does
