"""tcgen05.mma and tcgen05.commit.

NOTE [Where D lies]: M = 128 of one CTA and M = 256 of two: row r of a CTA in lane r, column n in
column n. M = 128 of two CTAs: each CTA has 64 rows; columns below N/2 lie in lanes 0 to 63, the
others in lanes 64 to 127, N/2 columns in all, and an A operand in tensor memory is there twice. M
= 64: row r in lane 32 (r / 16) + r mod 16. Of two CTAs each brings its half of the rows of A and
its half of the rows of B, at the same offsets; only one thread of one CTA issues.

NOTE [Accumulation]: products of 16-bit floats are exact in f32; sums of 16 are f32 sums in the
order of the host's BLAS. Hardware accumulates with other roundings, so results agree to f32
accuracy only.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine import mbarrier, tmem
from kernels_sm100.emulator.machine.mma_shape import Shape, shape_of
from kernels_sm100.emulator.machine.operand import Operand, as_float
from kernels_sm100.emulator.machine.uniform import running
from kernels_sm100.errors import UninitialisedRead, UnknownInstruction

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cta import Cta
    from kernels_sm100.emulator.machine.warp import Warp

Array = np.ndarray[Any, Any]
DEPTH = 16  # K of kind::f16
ONE_THREAD = 1 << 18  # multiplications that OpenBLAS does not spread over threads
A_COLUMNS = 8  # columns that A takes in tensor memory, two elements in each


def _pair(warp: "Warp", group: int) -> list["Cta"]:
    if group == 1:
        return [warp.cta]
    ctas = warp.cta.cluster.ctas
    return [ctas[warp.cta.rank & ~1], ctas[warp.cta.rank | 1]]


def _pipe(warp: "Warp", group: int) -> tuple[str, int, int]:
    rank = warp.cta.rank & ~1 if group == 2 else warp.cta.rank
    return ("tensor", warp.cta.cluster.number, rank)


def _issuer(warp: "Warp", mask: Mask | None, what: str) -> int:
    lanes = running(mask)
    if len(lanes) > 1:
        warp.fault(
            UnknownInstruction,
            what=f"{what} by several lanes",
            got=f"{len(lanes)} lanes",
            wanted="one elected lane",
            remedy="issue it behind elect.sync: every lane that runs it issues one more",
        )
    return lanes[0]


def multiply(
    warp: "Warp",
    d: Lanes,
    a: Lanes,
    b: Lanes,
    description: Lanes,
    disabled: tuple[Lanes, ...] | None,
    accumulate: Mask,
    scale: int,
    mask: Mask | None,
    *,
    kind: str,
    group: int,
    from_tmem: bool,
) -> None:
    """`tcgen05.mma`: queue D = A B + D 2^-scale."""
    lane = _issuer(warp, mask, "tcgen05.mma")
    if kind != "f16":
        warp.fault(
            UnknownInstruction, what="kind of tcgen05.mma that is not modelled", got=kind,
            wanted="kind::f16", remedy="extend umma.py, with a test",
        )  # fmt: skip
    shape = shape_of(warp, int(description[lane]), group)
    ctas = _pair(warp, group)
    _check_tensor_addresses(warp, int(d[lane]), int(a[lane]) if from_tmem else 0)
    halves = [
        Half(
            warp,
            cta,
            shape,
            int(d[lane]) & 0xFFFF,
            int(a[lane]),
            int(b[lane]),
            len(ctas),
            from_tmem=from_tmem,
        )
        for cta in ctas
    ]
    add = bool(accumulate[lane])
    keep = _kept_lanes(disabled, lane)
    factor = np.float32(2.0**-scale)
    if warp.races is not None:
        warp.races.issue_mma(warp, [half.accesses(add=add) for half in halves])
    counts = warp.grid.report.counts
    counts["mma"] += 1
    counts["mma_flops"] += 2 * shape.m * shape.n * DEPTH

    def action() -> None:
        rhs = np.concatenate([half.b.fetch(warp, shape.b_kind) for half in halves])
        for number, half in enumerate(halves):
            half.compute(warp, rhs, add=add, factor=factor, keep=keep[number])

    warp.grid.engine.pipe(_pipe(warp, group), warp, action)


def _check_tensor_addresses(warp: "Warp", *addresses: int) -> None:
    for address in addresses:
        if address >> 16:
            warp.fault(
                UnknownInstruction, what="MMA operand in tensor memory off lane 0",
                got=f"lane {address >> 16}", wanted="lane 0", remedy="extend umma.py, with a test",
            )  # fmt: skip


def _kept_lanes(disabled: tuple[Lanes, ...] | None, lane: int) -> list[Array | None]:
    """Lanes that are written, for each CTA; None for all."""
    if disabled is None:
        return [None, None]
    words = np.array([word[lane] for word in disabled], dtype=np.uint32)
    off = np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.bool_)
    if not off.any():
        return [None, None]
    return [~off[:128], ~off[128:]] if off.size == 256 else [~off, None]


class Half:
    """The part of an MMA that one CTA holds."""

    def __init__(
        self,
        warp: "Warp",
        cta: "Cta",
        shape: Shape,
        column: int,
        a: int,
        b: int,
        parts: int,
        *,
        from_tmem: bool,
    ) -> None:
        self.cta, self.shape, self.column = cta, shape, column
        self.rows = shape.m // parts
        self.split = shape.m == 128 and parts == 2
        self.columns = shape.n // 2 if self.split else shape.n
        self.b = Operand(warp, cta, b, shape.n // parts, mn_major=shape.b_mn_major)
        self.a: Operand | None = None
        self.a_column = a & 0xFFFF
        tmem.check_columns(warp, cta, column, self.columns, "accumulator of an MMA")
        if from_tmem:
            tmem.check_columns(warp, cta, self.a_column, A_COLUMNS, "A operand of an MMA")
        else:
            self.a = Operand(warp, cta, a, self.rows, mn_major=shape.a_mn_major)

    def accesses(
        self, *, add: bool
    ) -> tuple["Cta", list[Array], list[tuple[int, int]], tuple[int, int], bool]:
        """What is touched: chunks read, columns read, columns written, and whether D is read."""
        chunks = [self.b.chunks] + ([self.a.chunks] if self.a is not None else [])
        columns = [(self.a_column, A_COLUMNS)] if self.a is None else []
        return self.cta, chunks, columns, (self.column, self.columns), add

    def _lanes(self) -> list[tuple[slice, slice, slice]]:
        """(lanes of D, rows of A, columns of B) of each piece (NOTE [Where D lies])."""
        n = self.shape.n
        if self.split:
            return [
                (slice(0, 64), slice(0, 64), slice(0, n // 2)),
                (slice(64, 128), slice(0, 64), slice(n // 2, n)),
            ]
        if self.shape.m == 64:
            return [
                (slice(32 * i, 32 * i + 16), slice(16 * i, 16 * i + 16), slice(0, n))
                for i in range(4)
            ]
        return [(slice(0, 128), slice(0, 128), slice(0, n))]

    def compute(
        self, warp: "Warp", rhs: Array, *, add: bool, factor: np.float32, keep: Array | None
    ) -> None:
        """Multiply, and write D."""
        memory = self.cta.tmem
        fetched = None if self.a is None else self.a.fetch(warp, self.shape.a_kind)
        columns = slice(self.column, self.column + self.columns)
        for lanes, rows, of_b in self._lanes():
            lhs = self._from_tmem(warp, lanes) if fetched is None else fetched[rows]
            product = _product(lhs, rhs[of_b].T)
            if self.shape.negative:
                product = -product
            target = memory.data[lanes, columns]
            if add:
                known = memory.written[lanes, columns]
                if np.count_nonzero(known) != known.size:
                    _unwritten(warp, "accumulator", self.column)
                product = product + target.view(np.float32) * factor
            bits = np.ascontiguousarray(product).view(np.uint32)
            if keep is None:
                target[...] = bits
                memory.written[lanes, columns] = True
            else:
                target[keep[lanes]] = bits[keep[lanes]]
                memory.written[lanes, columns][keep[lanes]] = True

    def _from_tmem(self, warp: "Warp", lanes: slice) -> Array:
        memory, columns = self.cta.tmem, slice(self.a_column, self.a_column + A_COLUMNS)
        known = memory.written[lanes, columns]
        if np.count_nonzero(known) != known.size:
            _unwritten(warp, "A operand", self.a_column)
        words = np.ascontiguousarray(memory.data[lanes, columns])
        return as_float(words.view(np.uint16), self.shape.a_kind)


def _product(lhs: Array, rhs: Array) -> Array:
    """Matrix product, in pieces so small that BLAS stays in this thread: its others would spin."""
    rows = max(ONE_THREAD // (DEPTH * rhs.shape[1]), 1)
    if rows >= len(lhs):
        return lhs @ rhs
    return np.concatenate([lhs[at : at + rows] @ rhs for at in range(0, len(lhs), rows)])


def _unwritten(warp: "Warp", what: str, column: int) -> None:
    warp.fault(
        UninitialisedRead,
        what=f"{what} of an MMA in tensor memory that nobody wrote",
        got=f"columns from {column}",
        wanted="a store or an MMA before",
        remedy="clear the accumulate flag of the first MMA, or wait for the producer",
    )


def commit(warp: "Warp", place: Lanes, ctas: Lanes | None, group: int, mask: Mask | None) -> None:
    """`tcgen05.commit`: arrive when the work issued so far is complete."""
    lane = _issuer(warp, mask, "tcgen05.commit")
    address = int(place[lane])
    if ctas is None:
        places = [address]
    else:
        chosen = int(ctas[lane])
        ranks = [rank for rank in range(warp.cta.cluster.size) if chosen >> rank & 1]
        places = [address & 0xFFFFFF | rank << 24 for rank in ranks]
    barriers = [mbarrier.find(warp, each, remote=True) for each in places]
    races = warp.races
    access = None if races is None else races.issue_commit(warp, group)
    who = f"tcgen05.commit of CTA rank {warp.cta.rank} warp {warp.index} (line {warp.line})"

    def action() -> None:
        for barrier in barriers:
            if races is not None and access is not None:
                races.complete_load(access, barrier.address)
            mbarrier.count_down(warp, barrier, 1, who)

    warp.grid.report.counts["commit"] += 1
    warp.grid.engine.pipe(_pipe(warp, group), warp, action)


def copy(
    warp: "Warp", target: Lanes, source: Lanes, shape: str, group: int, mask: Mask | None
) -> None:
    """`tcgen05.cp`: not modelled yet."""
    del target, source, group, mask
    warp.fault(
        UnknownInstruction, what="tcgen05.cp", got=shape, wanted="tcgen05.st",
        remedy="extend umma.py, with a test",
    )  # fmt: skip
