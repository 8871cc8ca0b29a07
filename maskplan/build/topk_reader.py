"""Top-k lists on the CPU, read on all threads."""

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from torch import Tensor

from maskplan.build.assembly import assemble
from maskplan.errors import PlanError, sentence
from maskplan.geometry import Geometry
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.threads import run_ranges

# A strided input is copied to C order in pieces of this many bytes.
_PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Blocks of a stretch of Q blocks, as one thread found them."""

    counts: np.ndarray[Any, Any]
    col: np.ndarray[Any, Any]
    content: np.ndarray[Any, Any]
    tiles: np.ndarray[Any, Any]
    bad: tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopkReader:
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
