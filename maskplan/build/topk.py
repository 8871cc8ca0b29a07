"""Plans from top-k lists: for each query, or each Q block, the keys or KV blocks it selects."""

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from maskplan.build.assembly import assemble
from maskplan.build.host import index_tensor, rank
from maskplan.build.pattern_axes import distinct, require_heads
from maskplan.device.move import on_gpu
from maskplan.device.topk import TopkLists
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import Geometry, integer
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.threads import run_ranges

# A strided input is copied to C order in pieces of this many bytes.
_PIECE_BYTES = 8 << 20


def from_topk(
    indices: Tensor,
    seqlen_k: int,
    *,
    block_size: tuple[int, int] = (128, 128),
    rows: str = "token",
    unit: str = "token",
    base: str = "local",
    lengths: Tensor | None = None,
    seqlen_q: int | None = None,
    whole: bool = False,
    capacity: int | None = None,
) -> Plan:
    """The plan of lists of selected keys.

    -1 is no key, in any slot; a key listed twice counts once. A Q block of several queries lists
    the union of their blocks, and bits keep it exact. Axes that `expand` broadcast over batch or
    heads are planned once. Each thread holds bits of SK keys for the lists of one Q block.

    Indices on a GPU become a device plan, without waiting for the device: then an index out of
    range or a length beyond topk is dropped and recorded in the plan's status word, which
    `validate()` and `cpu()` read. Its memory follows from shapes: room for as many blocks as there
    can be, and for a tile of each, which together are the bits of P x SQ x SK pairs. `whole=True`
    leaves the tiles out.

    Args:
        indices: int32 or int64 [batch, heads, rows, topk], any strides, on the CPU or a GPU.
        seqlen_k: SK, in tokens.
        block_size: (bq, bk), in tokens.
        rows: "token": a list per query, rows = SQ. "block": a list per Q block, rows = M, and each
            query of the block sees all of it; needs `seqlen_q`.
        unit: "token": an index is a key. "block": an index is a KV block of bk tokens.
        base: "local": indices count from the start of their own batch. "global": of all batches,
            batch * SK + key, or batch * N + block.
        lengths: int32 or int64 [batch, heads, rows], sizes of 1 broadcast: the leading lanes of
            each list that hold; what lies beyond is ignored, valid or not.
        seqlen_q: SQ, in tokens.
        whole: say that every listed block is full: each list of a Q block holds all keys of each of
            its blocks. A device plan then needs no tiles; a block that is partial after all is
            dropped and recorded.
        capacity: room for blocks in a device plan, by default for all there can be; blocks beyond
            it are dropped and recorded. Of no consequence on the CPU.

    Raises:
        PlanTypeError: if an argument has the wrong dtype or rank, or an option is not a known one.
        PlanError: if an index is out of range or belongs to another batch (with its place), a
            length exceeds topk, a block is partial in spite of `whole`, or the number of rows does
            not fit `seqlen_q`.
    """
    for name, value, options in (
        ("rows", rows, ("token", "block")),
        ("unit", unit, ("token", "block")),
        ("base", base, ("local", "global")),
    ):
        _option(name, value, options)
    index_tensor(indices, "indices", or_gpu=True)
    rank(
        indices,
        "indices",
        (4,),
        "[batch, heads, rows, topk]",
        "say which axis is missing: indices[:, None] where all heads share [batch, rows, topk], "
        "indices.transpose(1, 2) for [batch, rows, heads, topk]",
    )
    require_heads(indices, "indices")
    geometry = _geometry(indices, seqlen_k, block_size, rows, seqlen_q)
    parts = [indices] if lengths is None else [indices, _lengths(lengths, indices)]
    pattern_id, own = distinct(*parts, batch_shared=base == "local")
    provenance = Provenance(
        builder="from_topk",
        parameters={"topk": indices.shape[3], "rows": rows, "unit": unit, "base": base},
    )
    room = None if capacity is None else integer(capacity, "capacity")
    if on_gpu(indices):
        return TopkLists(
            indices=own[0],
            lengths=None if lengths is None else own[1],
            geometry=geometry,
            per_row=1 if rows == "block" else geometry.block_size[0],
            unit_block=unit == "block",
            is_global=base == "global",
            whole=whole,
            capacity=room,
        ).plan(pattern_id, provenance)
    reader = _Reader(
        indices=own[0],
        lengths=None if lengths is None else own[1],
        geometry=geometry,
        lists=1 if rows == "block" else geometry.block_size[0],
        whole=unit == "block",
        is_global=base == "global",
    )
    plan = reader.plan(pattern_id, provenance)
    if whole and plan.tile_id is not None:
        raise _not_whole(plan)
    return plan


def _not_whole(plan: Plan) -> PlanError:
    assert plan.tile_id is not None
    entry = int((plan.tile_id >= 0).nonzero()[0])
    line = int((plan.row_ptr <= entry).sum()) - 1
    pattern, row = divmod(line, plan.axes.rows)
    return PlanError(
        sentence(
            what="block is not whole",
            where=f"pattern {pattern}, Q block {row}, KV block {int(plan.col[entry])}",
            got="some of its pairs, with whole=True",
            wanted="all of its pairs",
            remedy="leave out whole=True: bits then keep such blocks exact",
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Blocks of a stretch of Q blocks, as one thread found them."""

    counts: np.ndarray[Any, Any]
    col: np.ndarray[Any, Any]
    content: np.ndarray[Any, Any]
    tiles: np.ndarray[Any, Any]
    bad: tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Top-k lists with all that says how to read them."""

    indices: Tensor  # [b, h, rows, topk]
    lengths: Tensor | None  # int64 [b, h, rows]
    geometry: Geometry
    lists: int  # lists per Q block
    whole: bool
    is_global: bool

    def plan(self, pattern_id: Tensor, provenance: Provenance) -> Plan:
        """Read every list, on all threads."""
        patterns = self.indices.shape[0] * self.indices.shape[1]
        parts: dict[int, _Part] = {}

        def work(start: int, stop: int) -> None:
            parts[start] = self._read(start, stop)

        run_ranges(work, patterns * self.geometry.num_q_blocks)
        ordered = [parts[start] for start in sorted(parts)]
        for part in ordered:
            if part.bad is not None:
                self._raise_bad(part.bad)
        counts = np.concatenate([part.counts for part in ordered])
        row_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return assemble(
            self.geometry,
            pattern_id,
            row_ptr,
            np.concatenate([part.col for part in ordered]),
            _joined_contents(ordered),
            np.concatenate([part.tiles for part in ordered]),
            provenance,
        )

    def _read(self, start: int, stop: int) -> _Part:
        """Q blocks [start, stop), counted over patterns with Q blocks fastest."""
        from maskplan.build.band_kernel import new_band
        from maskplan.build.topk_kernel import read_blocks
        from maskplan.tile_pool import new_pool

        (bq, bk), words = self.geometry.block_size, self.geometry.axes.words
        band = new_band(self.geometry.seqlen_k, bk, self.lists)
        tile = np.zeros((bq, words), dtype=np.int32)
        pool = new_pool(bq, words, 16)
        col, content = np.empty(1024, dtype=np.int32), np.empty(1024, dtype=np.int32)
        counts = np.zeros(stop - start, dtype=np.int64)
        total = 0
        for first, last in self._pieces(start, stop):
            b, h, q_block = self._place(first)
            top = q_block * self.lists
            bottom = min(top + (last - first) * self.lists, self.indices.shape[2])
            lists = self.indices[b, h, top:bottom].contiguous().numpy()
            pool, col, content, total, row, slot = read_blocks(
                lists,
                self._counts(b, h, top, bottom),
                self._mode(b, q_block),
                band,
                tile,
                pool,
                col,
                content,
                total,
                counts[first - start : last - start],
            )
            if row >= 0:
                empty = np.empty(0, dtype=np.int32)
                bad = (b, h, top + row, slot)
                return _Part(counts=counts, col=empty, content=empty, tiles=pool[0][:0], bad=bad)
        return _Part(
            counts=counts,
            col=col[:total].copy(),
            content=content[:total].copy(),
            tiles=pool[0][: pool[3][0]],
            bad=None,
        )

    def _place(self, line: int) -> tuple[int, int, int]:
        """(batch, head, Q block) of a line."""
        pattern, q_block = divmod(line, self.geometry.num_q_blocks)
        b, h = divmod(pattern, self.indices.shape[1])
        return b, h, q_block

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int]]:
        """[start, stop) cut at patterns, and where the input is not in C order by size as well."""
        topk = max(self.indices.shape[3], 1)
        step = self.geometry.num_q_blocks
        if not self.indices[0, 0].is_contiguous():
            step = max(1, _PIECE_BYTES // (self.lists * topk * self.indices.element_size()))
        pieces = []
        while start < stop:
            to_pattern_end = self.geometry.num_q_blocks - start % self.geometry.num_q_blocks
            end = min(stop, start + min(step, to_pattern_end))
            pieces.append((start, end))
            start = end
        return pieces

    def _limit(self) -> int:
        return self.geometry.num_k_blocks if self.whole else self.geometry.seqlen_k

    def _mode(self, b: int, q_block: int) -> np.ndarray[Any, Any]:
        bk = self.geometry.block_size[1]
        shift = bk.bit_length() - 1 if bk & (bk - 1) == 0 else -1
        first = b * self._limit() if self.is_global else 0
        return np.array([first, self.whole, shift, q_block, self.geometry.seqlen_q], np.int64)

    def _counts(self, b: int, h: int, top: int, bottom: int) -> np.ndarray[Any, Any]:
        """Lanes that hold, int64 [bottom - top]."""
        if self.lengths is None:
            return np.full(bottom - top, self.indices.shape[3], dtype=np.int64)
        return self.lengths[b, h, top:bottom].contiguous().numpy()

    def _raise_bad(self, place: tuple[int, int, int, int]) -> NoReturn:
        b, h, row, slot = place
        value, limit = int(self.indices[place]), self._limit()
        low = b * limit if self.is_global else 0
        noun = "block" if self.whole else "token"
        meaning = f"{low} <= {noun} < {low + limit}, or -1 for none"
        remedy = (
            "mark unused slots with -1: lists padded with other values (FlashMLA's ids past the "
            f"end) enter as from_topk(indices.masked_fill(indices >= {limit}, -1), ...), or with "
            "lengths="
        )
        if self.is_global:
            meaning += f" (batch {b})"
            remedy = "list keys of the row's own batch only, or pass base='local'"
        raise PlanError(
            sentence(
                what="index out of range",
                where=f"indices[b={b}, h={h}, row={row}, slot={slot}]",
                got=value,
                wanted=meaning,
                remedy=remedy,
            )
        )


def _joined_contents(parts: list[_Part]) -> np.ndarray[Any, Any]:
    """The parts' contents, with tiles numbered over the parts' tiles one after another."""
    shifted, before = [], 0
    for part in parts:
        shifted.append(np.where(part.content >= 0, part.content + np.int32(before), part.content))
        before += len(part.tiles)
    return np.concatenate(shifted).astype(np.int32, copy=False)


def _option(name: str, value: str, options: tuple[str, str]) -> None:
    if value not in options:
        raise PlanTypeError(
            sentence(
                what="unknown option",
                where=name,
                got=repr(value),
                wanted=" or ".join(map(repr, options)),
                remedy="pass one of these",
            )
        )


def _geometry(
    indices: Tensor, seqlen_k: int, block_size: tuple[int, int], rows: str, seqlen_q: int | None
) -> Geometry:
    lists = indices.shape[2]
    if seqlen_q is None:
        if rows == "block":
            raise PlanError(
                sentence(
                    what="query length is not given",
                    where="seqlen_q",
                    got="None with rows='block'",
                    wanted="the number of queries",
                    remedy=f"pass seqlen_q, which {lists} Q blocks do not tell",
                )
            )
        seqlen_q = lists
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    wanted = geometry.seqlen_q if rows == "token" else geometry.num_q_blocks
    if lists != wanted:
        per = "query" if rows == "token" else "Q block"
        raise PlanError(
            sentence(
                what="wrong number of lists",
                where="indices, axis 2 (rows)",
                got=lists,
                wanted=f"{wanted}, one list per {per} of {geometry}",
                remedy="pass the seqlen_q and block_size that the lists were made for",
            )
        )
    return geometry


def _lengths(lengths: Tensor, indices: Tensor) -> Tensor:
    """`lengths` as int64 [batch, heads, rows], checked against the lists."""
    index_tensor(lengths, "lengths", or_gpu=True)
    if lengths.device != indices.device:
        raise PlanTypeError(
            sentence(
                what="lengths are on another device",
                where="lengths",
                got=lengths.device,
                wanted=f"{indices.device}, as indices",
                remedy="pass lengths.to(indices.device)",
            )
        )
    wanted = tuple(indices.shape[:3])
    rank(lengths, "lengths", (3,), f"{list(wanted)}, as indices", "add the axes of size 1")
    if any(size not in (1, full) for size, full in zip(lengths.shape, wanted, strict=True)):
        raise PlanError(
            sentence(
                what="lengths do not fit the lists",
                where="lengths",
                got=f"shape {list(lengths.shape)}",
                wanted=f"{list(wanted)}, or 1 in place of a size",
                remedy="pass one length for each list",
            )
        )
    if on_gpu(lengths):  # values are the kernels' to check
        return lengths.to(torch.int64).expand(wanted)
    topk = indices.shape[3]
    bad = ((lengths < 0) | (lengths > topk)).nonzero()
    if len(bad):
        b, h, row = bad[0].tolist()
        raise PlanError(
            sentence(
                what="length out of range",
                where=f"lengths[b={b}, h={h}, row={row}]",
                got=int(lengths[b, h, row]),
                wanted=f"0 <= length <= topk = {topk}",
                remedy="count the lanes of indices that hold",
            )
        )
    return lengths.to(torch.int64).expand(wanted)
