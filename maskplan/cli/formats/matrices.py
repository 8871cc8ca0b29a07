"""Formats of sparse matrices: FlashInfer's BSR and variable blocks, and SciPy's archives."""

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from maskplan.cli.arrays import as_tensor, raw_arrays, read_arrays, write_arrays
from maskplan.cli.formats.answers import Answers, same_lengths
from maskplan.cli.formats.masks import bounded
from maskplan.container import replacing
from maskplan.errors import PlanFileError, sentence
from maskplan.interop import flashinfer, scipy_sparse
from maskplan.plan import Plan

_SIZES = ("M", "N", "R", "C")


def read_bsr(path: Path, answers: Answers) -> Plan:
    """FlashInfer's arguments by name: indptr, indices, M, N, R, C, and mask where there is one."""
    wanted = dict.fromkeys(("indptr", "indices", *_SIZES), "iu")
    arrays = read_arrays(path, wanted, {"mask": "b"})
    m, n, r, c = (_number(arrays[name], name, path) for name in _SIZES)
    same_lengths(path, (m, n), answers)
    plan = flashinfer.from_flashinfer_bsr(
        arrays["indptr"], arrays["indices"], m, n, block_size=(r, c), mask=arrays.get("mask")
    )
    return plan if answers.block_size is None else plan.reblock(answers.block_size)


def write_bsr(plan: Plan, path: Path, answers: Answers) -> None:
    """FlashInfer's arguments by name."""
    found = flashinfer.to_bsr(plan, answers.block_size)
    arrays = {"indptr": found.indptr, "indices": found.indices}
    arrays |= {name: torch.tensor(getattr(found, name)) for name in _SIZES}
    write_arrays(path, arrays | ({} if found.mask is None else {"mask": found.mask}))


def read_variable(path: Path, answers: Answers) -> Plan:
    """FlashInfer's blocks of unequal size."""
    names = {"block_mask_map": "b", "block_row_sz": "iu", "block_col_sz": "iu"}
    arrays = read_arrays(path, names)
    return flashinfer.from_variable_blocks(
        *(arrays[name] for name in names), block_size=answers.block
    )


def write_variable(plan: Plan, path: Path, answers: Answers) -> None:
    """FlashInfer's blocks of unequal size, here all of the plan's."""
    bounded(plan.heads * plan.axes.rows * plan.axes.cols, path)
    mask, rows, cols = flashinfer.to_variable_blocks(plan, superset=bool(answers.superset))
    write_arrays(path, {"block_mask_map": mask, "block_row_sz": rows, "block_col_sz": cols})


def read_scipy(path: Path, answers: Answers) -> Plan:
    """What scipy.sparse.save_npz writes of a CSR or BSR matrix."""
    return scipy_sparse.from_scipy(
        _matrix(path),
        block_size=answers.block_size,
        zeros="error" if answers.zeros is None else answers.zeros,
    )


def write_scipy_csr(plan: Plan, path: Path, _: Answers) -> None:
    """The token mask, as scipy.sparse.save_npz writes it."""
    bounded(5 * plan.stats().pairs, path)
    _save(scipy_sparse.to_scipy_csr(plan), path)


def write_scipy_bsr(plan: Plan, path: Path, answers: Answers) -> None:
    """The blocks, as scipy.sparse.save_npz writes them."""
    moved = plan if answers.block_size is None else plan.reblock(answers.block_size)
    bounded(moved.num_blocks * moved.block_size[0] * moved.block_size[1], path)
    _save(scipy_sparse.to_scipy_bsr(moved, pad=bool(answers.pad)), path)


def _save(matrix: Any, path: Path) -> None:
    from scipy.sparse import save_npz

    with replacing(path) as file:
        save_npz(file, matrix)


def _matrix(path: Path) -> Any:
    """The matrix of an archive, from arrays that were bounded before they were read."""
    from scipy.sparse import bsr_array, csr_array

    arrays = _scipy_arrays(path)
    kind = arrays.pop("format")
    shape = tuple(arrays.pop("shape").tolist())
    data, indices, indptr = (arrays[name].numpy() for name in ("data", "indices", "indptr"))
    make = csr_array if kind == "csr" else bsr_array
    try:
        return make((data, indices, indptr), shape=shape)
    except (ValueError, TypeError, IndexError, ArithmeticError) as error:
        _refuse(path, "matrix is damaged", str(error), error)


def _scipy_arrays(path: Path) -> dict[str, Any]:
    """The archive's arrays by name, of them `format` as text."""
    arrays: dict[str, Any] = dict(raw_arrays(path, text=("format",)))
    arrays.pop("_is_array", None)
    name = arrays.pop("format", None)
    kind = "" if name is None or name.dtype.kind not in "SU" or name.ndim else _text(name)
    wanted = {"shape", "data", "indices", "indptr"}
    if kind not in ("csr", "bsr") or set(arrays) != wanted:
        _refuse(path, "no CSR or BSR matrix of SciPy", f"format {kind!r}, {sorted(arrays)}")
    tensors: dict[str, Any] = {
        key: as_tensor(arrays[key], f"{key} of {path}", "iu", 1)
        for key in ("shape", "indices", "indptr")
    }
    data = as_tensor(arrays["data"], f"data of {path}", "biuf", 1 if kind == "csr" else 3)
    if tensors["shape"].numel() != 2:
        _refuse(path, "no matrix", f"shape {tensors['shape'].tolist()[:8]}")
    return tensors | {"data": data, "format": kind}


def _text(name: np.ndarray[Any, Any]) -> str:
    value = name.item()
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _number(array: Tensor, name: str, path: Path) -> int:
    if array.numel() != 1:
        _refuse(path, f"{name} is not one number", f"shape {list(array.shape)}")
    return int(array)


def _refuse(path: Path, what: str, got: str, cause: BaseException | None = None) -> NoReturn:
    raise PlanFileError(
        sentence(
            what=what,
            where=str(path),
            got=f"{got:.160}",
            wanted="a whole file with the format's own names",
            remedy="`maskplan formats` says what each format is",
        )
    ) from cause
