"""NaN and infinity: they reach what selects them, as loops say, and nothing else."""

from dataclasses import replace

import pytest
import torch

import maskplan as mp
from tests.attention.problems import WAYS, Problem, assert_close, problem

BLOCKS = [(32, 32), (1, 64), (16, 1), (64, 160), (2, 5)]
POISON = [float("nan"), float("inf"), -float("inf")]


def sparse_problem(block_size: tuple[int, int], **options: object) -> Problem:
    """Some pairs, whole blocks, an empty row 3 and an empty column 7."""
    mask = torch.rand(1, 2, 70, 90, generator=torch.Generator().manual_seed(3)) < 0.1
    mask[:, 0, :64, 32:64] = True
    mask[:, :, 3] = False
    mask[:, :, :, 7] = False
    return problem(mask, block_size, heads=4, kv_heads=2, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("value", POISON)
def test_what_nothing_selects_changes_no_bit(value, block_size, way):
    clean = sparse_problem(block_size)
    dirty = replace(clean, q=clean.q.clone(), k=clean.k.clone(), v=clean.v.clone())
    dirty = replace(dirty, dout=clean.dout.clone(), dlse=clean.dlse.clone())
    dirty.k[:, 7], dirty.v[:, 7], dirty.q[:, 3] = value, value, value
    dirty.dout[:, 3], dirty.dlse[:, :, 3] = value, value
    found, wanted = dirty.run(*way), clean.run(*way)

    # Tiles with poison in them are summed pair by pair, so the last bit may differ there.
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
    assert (found["out"][:, 3] == 0).all()
    assert (found["lse"][:, :, 3] == -torch.inf).all()
    assert (found["dq"][:, 3] == 0).all()
    assert (found["dk"][:, 7] == 0).all()
    assert (found["dv"][:, 7] == 0).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("where", ["q", "k", "v", "dout"])
@pytest.mark.parametrize("value", POISON[:2])
def test_what_some_select_reaches_them_alone(value, where, block_size, way):
    made = sparse_problem(block_size)
    tensor = getattr(made, where).clone()
    tensor[:, 40, :, 2] = value

    made = replace(made, **{where: tensor})

    assert_close(made.run(*way), made.expected(), made.q.dtype, kinds=way[0] == "cpu")


def test_a_row_of_minus_infinity_is_like_an_empty_one():
    made = problem(torch.ones(1, 1, 4, 6, dtype=torch.bool), (2, 3), dims=(1, 2))
    made = replace(made, q=made.q.abs(), k=torch.full_like(made.k, -torch.inf))

    for way in WAYS:
        found = made.run(*way)
        assert (found["out"] == 0).all()
        assert (found["lse"] == -torch.inf).all()


@pytest.mark.parametrize("backward", ["loop_q", "loop_k"])
@pytest.mark.parametrize("block_size", [(16, 32), (4, 4)])
def test_queries_whose_every_score_is_minus_infinity_give_values_no_gradient(backward, block_size):
    # Whole blocks: no bit is there to clear the weights of such a row.
    q = torch.ones(1, 32, 1, 8, requires_grad=True)
    k = torch.full((1, 32, 1, 8), -torch.inf)
    v = torch.randn(1, 32, 1, 8, generator=torch.Generator().manual_seed(3)).requires_grad_()

    out, lse = mp.attention(
        q, k, v, mp.full(32, 32, block_size=block_size), backward=backward, return_lse=True
    )
    out.sum().backward()

    assert (out == 0).all()
    assert (lse == -torch.inf).all()
    assert (v.grad == 0).all()
