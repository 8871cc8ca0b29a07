"""scipy.sparse: token masks as CSR, block masks as BSR, both ways.

Stored entries that are zero are refused unless the call says what they mean: SciPy keeps them, and
whether a stored zero attends is for its maker to say.
"""

from typing import Any

import numpy as np
import torch

from maskplan.bits import pack
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import Geometry, flag
from maskplan.interop.block_bits import block_bits
from maskplan.interop.whole_blocks import one_pattern
from maskplan.plan import Plan
from maskplan.provenance import Provenance

_ZEROS = ("error", "drop", "keep")


def from_scipy(
    matrix: Any, *, block_size: tuple[int, int] | None = None, zeros: str = "error"
) -> Plan:
    """The plan of a sparse matrix [SQ, SK] whose entries are the pairs that attend.

    Args:
        matrix: scipy.sparse csr or bsr, array or matrix, of any dtype.
        block_size: (bq, bk), in tokens; by default a BSR matrix's own, and (128, 128) for CSR.
        zeros: stored zeros are an "error", to "drop", or to "keep" as attending.

    Raises:
        PlanTypeError: if it is neither CSR nor BSR, or `zeros` is none of the three.
        PlanError: if it stores a zero (and `zeros` is "error") or a NaN, or its arrays are damaged.
    """
    if zeros not in _ZEROS:
        _type_error("zeros", repr(zeros), " or ".join(map(repr, _ZEROS)), "name one of these")
    kind = getattr(matrix, "format", type(matrix).__name__)
    if kind not in ("csr", "bsr"):
        _type_error("matrix", str(kind), "csr or bsr", "pass matrix.tocsr()")
    if kind == "bsr" and matrix.data.ndim != 3:  # SciPy reads the block size off its shape
        _damaged("data", f"shape {list(matrix.data.shape)}", "[blocks, rows, columns]")
    rows = matrix.shape[0] // (matrix.blocksize[0] if kind == "bsr" else 1)
    side = matrix.blocksize if kind == "bsr" else (1, 1)
    pointers, columns = _lists(matrix, rows, matrix.shape[1] // max(side[1], 1))
    keep = _kept(matrix, zeros)
    geometry = Geometry(seqlen_q=matrix.shape[0], seqlen_k=matrix.shape[1], block_size=side)
    line = np.repeat(np.arange(rows), np.diff(pointers))
    order = np.lexsort((columns, line))
    line, columns, keep = line[order], columns[order], keep[order]
    first = np.append(True, (line[1:] != line[:-1]) | (columns[1:] != columns[:-1]))
    if len(columns):  # entries of one place are summed by SciPy, so one that counts is enough
        starts = first.nonzero()[0]
        keep = np.logical_or.reduceat(keep, starts, axis=0)
        line, columns = line[starts], columns[starts]
    counts = np.bincount(line, minlength=rows)
    plan = Plan(
        geometry=geometry,
        pattern_id=torch.zeros((1, 1), dtype=torch.int32),
        row_ptr=torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)),
        col=torch.from_numpy(columns.astype(np.int32)),
        tile_id=torch.arange(len(columns), dtype=torch.int32),
        tiles=pack(torch.from_numpy(keep.reshape(len(columns), *side))),
        provenance=Provenance(builder="from_scipy", parameters={"format": kind}),
    ).canonical()
    if block_size is None:
        block_size = (128, 128) if kind == "csr" else side
    return plan.reblock(block_size)


def to_scipy_csr(plan: Plan) -> Any:
    """The token mask of a plan whose heads share one pattern: csr_array of bool [SQ, SK].

    Holds every kept pair: 5 bytes each.

    Raises:
        PlanError: if heads differ.
    """
    from scipy.sparse import csr_array

    tokens = one_pattern(plan, "scipy csr").reblock((1, 1))
    data = np.ones(tokens.num_blocks, dtype=np.bool_)
    lists = (data, tokens.col.numpy(), tokens.row_ptr.numpy())
    return csr_array(lists, shape=(plan.seqlen_q, plan.seqlen_k))


def to_scipy_bsr(plan: Plan, *, pad: bool = False) -> Any:
    """The blocks of a plan whose heads share one pattern: bsr_array of bool [SQ, SK].

    Args:
        plan: the plan; its block size is the matrix's.
        pad: make the matrix as large as whole blocks are, where the lengths are ragged; pairs
            past them are False.

    Raises:
        PlanError: if heads differ, or the lengths are ragged and `pad` is False.
    """
    from scipy.sparse import bsr_array

    one_pattern(plan, "scipy bsr")
    (bq, bk), axes = plan.block_size, plan.axes
    shape = (axes.rows * bq, axes.cols * bk)
    pad = flag(pad, "pad")
    if shape != (plan.seqlen_q, plan.seqlen_k) and not pad:
        raise PlanError(
            sentence(
                what="lengths are not made of whole blocks",
                where="scipy bsr",
                got=str(plan.geometry),
                wanted="lengths that the block size divides",
                remedy=f"pass pad=True for a matrix of {shape[0]} x {shape[1]}, or use csr",
            )
        )
    data = block_bits(plan).numpy()
    return bsr_array((data, plan.col.numpy(), plan.row_ptr.numpy()), shape=shape)


def _lists(matrix: Any, rows: int, cols: int) -> tuple[np.ndarray, np.ndarray]:
    """(indptr, indices), int64, checked: SciPy does not look at arrays changed after the fact."""
    for name in ("indptr", "indices"):
        array = getattr(matrix, name)
        if array.dtype.kind not in "iu" or array.ndim != 1:
            _damaged(name, f"{array.dtype} {list(array.shape)}", "integers, one axis")
    pointers, columns = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
    ends = len(pointers) == rows + 1 and pointers[0] == 0 and pointers[-1] == len(columns)
    if not ends or (np.diff(pointers) < 0).any():
        _damaged("indptr", pointers.tolist()[:8], f"0 to {len(columns)}, never decreasing")
    bad = (columns < 0) | (columns >= cols)
    if bad.any():
        _damaged("indices", int(columns[bad.argmax()]), f"0 <= index < {cols}")
    wanted = (len(columns), *(matrix.blocksize if matrix.format == "bsr" else ()))
    if matrix.data.shape != wanted:
        _damaged("data", f"shape {list(matrix.data.shape)}", f"{list(wanted)}, as indices")
    return pointers, columns


def _kept(matrix: Any, zeros: str) -> np.ndarray:
    """bool, as matrix.data."""
    data = matrix.data
    if data.dtype.kind in "fc" and np.isnan(data).any():
        _damaged("data", "NaN", "numbers")
    keep: np.ndarray = data != 0
    if zeros == "keep":
        return np.ones_like(keep)
    # A BSR block is dense: its zeros are stored because it has others.
    stored = keep if keep.ndim == 1 else keep.any(axis=(1, 2))
    if zeros == "error" and not stored.all():
        raise PlanError(
            sentence(
                what="matrix stores zeros",
                where=f"data[{int((~stored).argmax())}]",
                got=f"{int((~stored).sum())} stored entries that are zero",
                wanted="entries that are not zero",
                remedy="say zeros='drop' or zeros='keep'",
            )
        )
    return keep


def _damaged(where: str, got: object, wanted: str) -> None:
    raise PlanError(
        sentence(
            what="matrix is damaged",
            where=where,
            got=got,
            wanted=wanted,
            remedy="make the matrix again, matrix.check_format() tells where",
        )
    )


def _type_error(where: str, got: str, wanted: str, remedy: str) -> None:
    raise PlanTypeError(
        sentence(what="argument is not usable", where=where, got=got, wanted=wanted, remedy=remedy)
    )
