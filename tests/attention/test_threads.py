"""Equal calls give equal bits, one after another and from several threads at once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from maskplan.attention.workers import SMALLEST_WORK, even_pieces, run_pieces
from tests.attention.problems import WAYS, Problem, problem

MASK = torch.ones(1, 1, 130, 130, dtype=torch.bool).tril()


def large_problem() -> Problem:
    """Enough work for several threads, on rows of very different length."""
    mask = torch.rand(1, 2, 700, 800, generator=torch.Generator().manual_seed(5)) < 0.02
    mask[:, 0, :256] = True
    return problem(mask, (64, 64), heads=4, kv_heads=2, dims=(32, 32))


def same(one: dict, other: dict) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("way", WAYS)
def test_repeats_are_equal_bit_for_bit(way):
    made = large_problem() if way[0] == "cpu" else problem(MASK, (16, 16), heads=2)
    first = made.run(*way, deterministic=True)

    assert all(same(first, made.run(*way)) for _ in range(5))


def test_threads_do_not_disturb_each_other():
    problems = [large_problem()]
    problems.append(replace(problems[0], q=problems[0].q * 2, scale=0.1))
    alone = [made.run() for made in problems]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda i: problems[i % 2].run(), range(18)))

    assert all(same(alone[i % 2], result) for i, result in enumerate(found))


def test_pieces_cover_everything_once_and_evenly():
    work = np.array([100, *([1] * 300), 50], dtype=np.int64)
    bounds = even_pieces(work, 8)
    sizes = [int(work[a:b].sum()) for a, b in pairwise(bounds)]

    assert (bounds[0], bounds[-1]) == (0, len(work))
    assert all(a < b for a, b in pairwise(bounds))
    assert max(sizes) <= 100 + work.sum() / 8
    assert even_pieces(np.zeros(0, np.int64), 4) == [0]
    assert even_pieces(np.zeros(3, np.int64), 4) == [0, 3]


@pytest.mark.parametrize("size", [0, 2 * SMALLEST_WORK])
def test_an_error_in_a_piece_is_raised(size):
    def work(start, _stop):
        if start == 1:
            raise ValueError("piece one")

    with pytest.raises(ValueError, match="piece one"):
        run_pieces(work, [0, 1, 2, 3], size)
