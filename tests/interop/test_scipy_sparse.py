"""SciPy's matrices, made and read by SciPy itself."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskplan as mp
from maskplan.interop import scipy_sparse
from tests.handmade import plan_of
from tests.oracle import assert_plan
from tests.strategies import block_sizes, dense_masks, plans


@given(plans(heads=(1, 1)))
def test_csr_both_ways(plan):
    matrix = scipy_sparse.to_scipy_csr(plan)

    assert np.array_equal(matrix.toarray(), plan.to_dense()[0, 0].numpy())
    matrix.check_format(full_check=True)
    assert scipy_sparse.from_scipy(matrix, block_size=plan.block_size) == plan


@given(plans(heads=(1, 1)))
def test_bsr_both_ways(plan):
    bq, bk = plan.block_size
    matrix = scipy_sparse.to_scipy_bsr(plan, pad=True)
    rows, cols = plan.axes.rows * bq, plan.axes.cols * bk

    assert matrix.shape == (rows, cols)
    dense = matrix.toarray()
    assert np.array_equal(dense[: plan.seqlen_q, : plan.seqlen_k], plan.to_dense()[0, 0].numpy())
    assert not dense[plan.seqlen_q :].any()
    assert not dense[:, plan.seqlen_k :].any()
    again = scipy_sparse.from_scipy(matrix)
    assert again.block_size == plan.block_size
    assert again.crop(q=(0, plan.seqlen_q), k=(0, plan.seqlen_k)) == plan


@given(dense_masks((12, 18)), st.sampled_from([(2, 3), (4, 6), (12, 1)]), block_sizes())
def test_matrices_that_scipy_made(mask, side, block_size):
    csr = sp.csr_matrix(mask.numpy().astype(np.float32))
    bsr = csr.tobsr(blocksize=side)

    for matrix in (csr, bsr, sp.csr_array(csr), sp.bsr_array(bsr)):
        assert_plan(scipy_sparse.from_scipy(matrix, block_size=block_size), mask[None, None])


def test_unsorted_rows_and_repeated_entries():
    matrix = sp.csr_array((np.ones(4), np.array([3, 1, 1, 0]), np.array([0, 3, 4])), shape=(2, 4))
    plan = scipy_sparse.from_scipy(matrix, block_size=(1, 1))

    assert plan.to_dense()[0, 0].int().tolist() == [[0, 1, 0, 1], [1, 0, 0, 0]]


def test_stored_zeros_need_a_word():
    matrix = sp.csr_array((np.array([0.0, 2.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))

    with pytest.raises(mp.PlanError, match=r"matrix stores zeros in data\[0\].*zeros='drop'"):
        scipy_sparse.from_scipy(matrix)
    assert scipy_sparse.from_scipy(matrix, zeros="drop").to_dense().flatten().tolist() == [
        False,
        True,
    ]
    assert scipy_sparse.from_scipy(matrix, zeros="keep").density == 1.0


def damaged(**arrays):
    matrix = sp.csr_array((np.ones(2), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 2))
    for name, values in arrays.items():
        setattr(matrix, name, np.array(values))
    return matrix


def flat_blocks():
    matrix = sp.bsr_array(np.ones((4, 4)), blocksize=(2, 2))
    matrix.data = matrix.data.reshape(4, 4)
    return matrix


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: scipy_sparse.from_scipy(flat_blocks()), "data: got shape [4, 4], wanted [blocks"),
        (lambda: scipy_sparse.from_scipy(damaged(indices=[0, 9])), "indices: got 9"),
        (lambda: scipy_sparse.from_scipy(damaged(indices=[0, -1])), "indices: got -1"),
        (lambda: scipy_sparse.from_scipy(damaged(indptr=[0, 2, 1])), "indptr"),
        (lambda: scipy_sparse.from_scipy(damaged(data=[1.0, np.nan])), "data: got NaN"),
        (lambda: scipy_sparse.from_scipy(damaged(indices=[0.5, 1.5])), "indices: got float64"),
        (lambda: scipy_sparse.from_scipy(damaged(indptr=[[0, 1, 2]])), "indptr: got int64 [1, 3]"),
        (lambda: scipy_sparse.from_scipy(damaged(data=[1.0])), "data: got shape [1], wanted [2]"),
        (lambda: scipy_sparse.from_scipy(damaged(data=[1.0] * 3)), "data: got shape [3]"),
        (lambda: scipy_sparse.from_scipy(damaged(data=[[1.0], [1.0]])), "data: got shape [2, 1]"),
        (lambda: scipy_sparse.from_scipy(damaged().tocoo()), "got coo, wanted csr or bsr"),
        (lambda: scipy_sparse.from_scipy(np.ones((2, 2))), "got ndarray"),
        (lambda: scipy_sparse.from_scipy(damaged(), zeros="x"), "wanted 'error' or 'drop'"),
        (lambda: scipy_sparse.to_scipy_bsr(mp.full(5, 4, block_size=(2, 2))), "matrix of 6 x 4"),
        (
            lambda: scipy_sparse.to_scipy_csr(
                plan_of(torch.stack([torch.ones(2, 2), torch.eye(2)]).bool(), (2, 2), [[0, 1]])
            ),
            "2 distinct patterns",
        ),
    ],
)
def test_what_is_refused(call, part):
    with pytest.raises(mp.MaskplanError) as caught:
        call()
    assert part in str(caught.value)
