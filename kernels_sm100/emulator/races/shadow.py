"""Shadow of shared or tensor memory: for each cell who wrote it last and who read it since.

A cell is 4 bytes of shared memory, or one column of a quarter of tensor memory. Coarser cells would
report neighbours that are independent. An epoch of 0 is before everything, so cells that nobody
touched conflict with nothing.
"""

from typing import Any, NamedTuple

import numpy as np

from kernels_sm100.emulator.races.clock import HAPPENED, Clock

Array = np.ndarray[Any, Any]
GENERIC, ASYNC = 0, 1


class Conflict(NamedTuple):
    """Two accesses that nothing orders, or that no fence joins."""

    what: str
    other: int  # actor
    line: int  # of the other's access, 0 if unknown
    cell: int


class Shadow:
    """Last write and last reads of `cells` cells by `actors` actors."""

    def __init__(self, cells: int, actors: int) -> None:
        self.writer = np.zeros(cells, dtype=np.int16)
        self.epoch = np.zeros(cells, dtype=np.int32)
        self.kind = np.zeros(cells, dtype=np.int8)
        self.line = np.zeros(cells, dtype=np.int32)
        self.reads = np.zeros((actors, cells), dtype=np.int32)
        self.read_bits = np.zeros(cells, dtype=np.uint64)  # who read since the last write
        self.bit: dict[int, np.uint64] = {}
        self.read_line: dict[int, int] = {}

    def read(
        self, cells: Any, me: int, clock: Clock, epoch: int, kind: int, fence: int, line: int
    ) -> Conflict | None:
        """Note a read; `fence` is the row that an asynchronous reader also needs."""
        writer, written = self.writer[cells], self.epoch[cells]
        late = clock.rows[HAPPENED][writer] < written
        if np.count_nonzero(late):
            return self._conflict("read of a write", late, cells)
        if kind == ASYNC:
            late = (clock.rows[fence][writer] < written) & (self.kind[cells] == GENERIC)
            if np.count_nonzero(late):
                return self._conflict("fence", late, cells)
        self.reads[me, cells] = epoch
        self.read_bits[cells] |= self._bit_of(me, line)
        return None

    def _bit_of(self, reader: int, line: int) -> np.uint64:
        """The bit of a reader; with more than 64 of them some share one."""
        self.read_line[reader] = line
        bit = self.bit.get(reader)
        if bit is None:
            bit = self.bit[reader] = np.uint64(1 << len(self.bit) % 64)
        return bit

    def write(
        self, cells: Any, me: int, clock: Clock, epoch: int, kind: int, line: int
    ) -> Conflict | None:
        """Note a write."""
        known = clock.rows[HAPPENED]
        late = known[self.writer[cells]] < self.epoch[cells]
        if np.count_nonzero(late):
            return self._conflict("write over a write", late, cells)
        read = np.bitwise_or.reduce(self.read_bits[cells], axis=None)
        if read:
            for reader, bit in self.bit.items():
                if reader == me or not read & bit:
                    continue
                late = self.reads[reader, cells] > known[reader]
                if np.count_nonzero(late):
                    cell = self._first(late, cells)
                    return Conflict("write over a read", reader, self.read_line[reader], cell)
            self.read_bits[cells] = 0
        self.writer[cells] = me
        self.epoch[cells] = epoch
        self.kind[cells] = kind
        self.line[cells] = line
        return None

    def forget(self, cells: slice) -> None:
        """Cells whose past does not matter any more."""
        self.epoch[cells] = 0
        self.reads[:, cells] = 0
        self.read_bits[cells] = 0

    def read_chunks(
        self, chunks: Array, me: int, clock: Clock, epoch: int, fence: int, line: int
    ) -> Conflict | None:
        """Note an asynchronous read of 16-byte chunks, four cells each."""
        writer = self.writer.reshape(-1, 4)[chunks]
        written = self.epoch.reshape(-1, 4)[chunks]
        late = clock.rows[fence][writer] < written
        if np.count_nonzero(late):  # the fence row never exceeds row 0, so look closer only now
            cells = (chunks[..., None] * 4 + np.arange(4)).ravel()
            return self.read(cells, me, clock, epoch, ASYNC, fence, line)
        self.reads.reshape(len(self.reads), -1, 4)[me, chunks] = epoch
        self.read_bits.reshape(-1, 4)[chunks] |= self._bit_of(me, line)
        return None

    @staticmethod
    def _first(late: Array, cells: Any) -> int:
        at = int(np.argmax(late.ravel()))
        return cells.start + at if isinstance(cells, slice) else int(np.asarray(cells).ravel()[at])

    def _conflict(self, what: str, late: Array, cells: Any) -> Conflict:
        cell = self._first(late, cells)
        return Conflict(what, int(self.writer[cell]), int(self.line[cell]), cell)
