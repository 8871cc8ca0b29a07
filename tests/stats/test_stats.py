"""Every figure of `stats` against counts over the dense mask."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given

import maskplan as mp
from maskplan.stats import stats
from tests.handmade import causal_mask, plan_of, transposed_of
from tests.strategies import plans


def blocks_of(plan, mask):
    """For each block of one dense mask: (row, kept pairs, pairs in range)."""
    bq, bk = plan.block_size
    for row, top in enumerate(range(0, plan.seqlen_q, bq)):
        for left in range(0, plan.seqlen_k, bk):
            block = mask[top : top + bq, left : left + bk]
            yield row, int(block.sum()), block.numel()


@given(plans())
def test_counts_are_those_of_the_dense_mask(plan):
    dense = plan.to_dense()
    figures = stats(plan, head_dim=16)
    full = partial = empty = visited = 0
    row_work = torch.zeros(plan.batch, plan.heads, plan.axes.rows, dtype=torch.int64)
    for batch in range(plan.batch):
        for head in range(plan.heads):
            for row, kept, area in blocks_of(plan, dense[batch, head]):
                full += kept == area
                partial += 0 < kept < area
                empty += kept == 0
                visited += area if kept else 0
                row_work[batch, head, row] += kept > 0

    assert int(dense.sum()) == figures.pairs
    assert dense.numel() == figures.all_pairs
    assert (full, partial, empty) == (
        figures.full_blocks,
        figures.mask_blocks,
        figures.empty_blocks,
    )
    assert visited == figures.visited_pairs
    assert torch.equal(row_work, figures.row_work)
    assert torch.equal(row_work.sum(2), figures.head_work)
    assert torch.equal(dense.sum((2, 3)), figures.head_pairs)
    assert 4 * 16 * figures.pairs == figures.forward_flops
    assert 10 * 16 * figures.pairs == figures.backward_flops
    assert 4 * 16 * visited == figures.visited_forward_flops
    assert 10 * 16 * visited == figures.visited_backward_flops


@given(plans(canonical=False))
def test_full_partial_and_empty_go_by_pairs_in_any_form(plan):
    one, other = stats(plan), stats(plan.canonical())
    for name in ("pairs", "full_blocks", "mask_blocks", "empty_blocks"):
        assert getattr(one, name) == getattr(other, name)
    assert torch.equal(one.head_pairs, other.head_pairs)


def test_ratios_of_a_causal_plan():
    plan = plan_of(causal_mask(6, 6), (2, 2), [[0, 0]])
    figures = plan.stats()

    assert figures.density == plan.density == 21 / 36
    assert figures.sparsity == 1 - 21 / 36
    assert figures.block_density == 6 / 9
    assert figures.amplification == 24 / 21
    assert figures.row_imbalance == 3 / 2
    assert figures.head_imbalance == 1.0
    arrays = (plan.pattern_id, plan.row_ptr, plan.col, plan.tile_id, plan.tiles)
    assert figures.bytes == sum(a.numel() * a.element_size() for a in arrays)


def test_heads_of_unequal_work_are_unbalanced():
    masks = torch.stack([torch.ones(4, 4), torch.eye(4)]).bool()

    assert stats(plan_of(masks, (1, 1), [[0, 1]])).head_imbalance == 16 / 10


def test_a_transposed_plan_counts_rows_of_keys():
    figures = stats(transposed_of(causal_mask(4, 6), (2, 2)))

    assert figures.pairs == 10
    assert figures.row_work.tolist() == [[[2, 1, 0]]]


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (0, 0)])
def test_a_plan_of_no_pairs_divides_by_nothing(lengths):
    figures = stats(plan_of(torch.ones(1, *lengths, dtype=torch.bool), (2, 2)))

    assert (figures.pairs, figures.all_pairs, figures.visited_pairs) == (0, 0, 0)
    assert (figures.density, figures.sparsity, figures.block_density) == (0.0, 1.0, 0.0)
    assert (figures.amplification, figures.row_imbalance, figures.head_imbalance) == (1, 1, 1)
    assert "density" in str(figures)


def test_listed_empty_blocks_are_visited_and_still_empty():
    plan = plan_of(causal_mask(4, 4), (4, 4))
    plan = replace(plan, tiles=torch.zeros_like(plan.tiles))

    assert stats(plan).amplification == math.inf
    assert (stats(plan).mask_blocks, stats(plan).empty_blocks) == (0, 1)


def test_totals_beyond_64_bits_stay_exact():
    length, block = 2**31 - 1, (2**14, 2**15)
    columns = -(-length // block[1])
    plan = mp.Plan(
        geometry=mp.Geometry(seqlen_q=block[0], seqlen_k=length, block_size=block),
        pattern_id=torch.zeros(512, 1024, dtype=torch.int32),
        row_ptr=torch.tensor([0, columns]),
        col=torch.arange(columns, dtype=torch.int32),
        tile_id=None,
        tiles=torch.empty(0, block[0], block[1] // 32, dtype=torch.int32),
    )
    pairs = 512 * 1024 * block[0] * length

    assert pairs > 2**63
    assert stats(plan).pairs == pairs == stats(plan).all_pairs
    assert mp.amplification(plan) == 1.0


def test_the_printed_table_names_every_figure():
    """SVG#25: a sparsity option that was a density; nothing here is printed without its name."""
    lines = str(stats(plan_of(causal_mask(6, 6), (2, 2)), head_dim=64)).splitlines()

    assert lines[0] == "6 x 6 tokens in blocks of 2 x 2, batch 1, heads 1, patterns 1"
    rows = [line.split() for line in lines[1:]]
    assert [*rows[0][:2], *rows[1][:2]] == ["density", "58.3333%", "sparsity", "41.6667%"]
    assert lines[3].split()[:3] == ["block", "density", "66.6667%"]
    assert "kept pairs / all pairs, token level" in lines[1]
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(("head_dim", "error"), [(0, mp.PlanError), (1.5, mp.PlanTypeError)])
def test_head_dim_is_checked(head_dim, error):
    with pytest.raises(error, match="head_dim"):
        stats(plan_of(causal_mask(2, 2), (2, 2)), head_dim=head_dim)
