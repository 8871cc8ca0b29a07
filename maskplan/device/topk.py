"""Top-k lists to device plans: one pass over the indices, and passes over bits.

The pass over the indices is CUDA C++ where NVRTC is at hand, because it needs what Triton has not:
atomic operations in shared memory. There a list's bits (16 KiB for 131,072 keys) are put together
without touching device memory; Triton puts them together in L2, and is what runs elsewhere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.device.list_reader import SPARE, FoundBits, GivenLists, reader
from maskplan.device.lists import (
    check_room,
    counted,
    listing,
    on_device,
    power_of_two,
    words_of,
)
from maskplan.device.nvrtc import place_of, runs
from maskplan.device.status import new_status
from maskplan.geometry import WORD_BITS, Geometry
from maskplan.plan import Plan
from maskplan.provenance import Provenance

_MOST_WORDS = 256  # a KV block's; larger ones are for tests
_NO_TILES = "say whole=True if every listed block is full, "
_RUNS = 32  # of 32 lanes, that a Triton program reads


@dataclass(frozen=True, slots=True, kw_only=True)
class TopkLists:
    """Top-k lists on a device with all that says how to read them.

    Attributes:
        indices: int32 or int64 [b, h, lists, topk], any strides.
        lengths: int64 [b, h, lists], any strides, or None.
        geometry: lengths and block size.
        per_row: lists of a Q block, bq or 1.
        unit_block: an index is a KV block rather than a key.
        is_global: indices count over all batches.
        whole: the caller says that every listed block is full.
        capacity: room for blocks, or None for as many as there can be.
    """

    indices: Tensor
    lengths: Tensor | None
    geometry: Geometry
    per_row: int
    unit_block: bool
    is_global: bool
    whole: bool
    capacity: int | None

    @property
    def patterns(self) -> int:
        """Distinct (batch, head)."""
        return self.indices.shape[0] * self.indices.shape[1]

    @property
    def lines(self) -> int:
        """Q blocks of all patterns."""
        return self.patterns * self.geometry.num_q_blocks

    @property
    def limit(self) -> int:
        """One past the largest index within a batch."""
        return self.geometry.num_k_blocks if self.unit_block else self.geometry.seqlen_k

    @property
    def all_full(self) -> bool:
        """Whether no block can be partial, or those that are get dropped."""
        return self.whole or (self.unit_block and self.per_row == 1)

    @property
    def in_cuda(self) -> bool:
        """Whether `read_lists.cu` reads them: 32 blocks fit in shared memory, and it is there."""
        if not runs(self.indices):
            return False
        words = 1 if self.unit_block else self.geometry.axes.words
        return words <= _MOST_WORDS

    @property
    def room(self) -> int:
        """Room for blocks: as asked, or what the shapes allow at most."""
        if self.capacity is not None:
            return self.capacity
        (_, bk), topk = self.geometry.block_size, self.indices.shape[3]
        most = topk * self.per_row
        if self.whole:  # all lists of a Q block hold all keys of each of its blocks
            ragged = self.geometry.seqlen_k % bk != 0
            most = topk if self.unit_block else topk // bk + ragged
        return self.lines * min(self.geometry.num_k_blocks, most)

    def plan(self, pattern_id: Tensor, provenance: Provenance) -> Plan:
        """The device plan of the lists.

        Raises:
            PlanError: if it could have more blocks, or tiles, than 32-bit numbers count.
        """
        if not self.geometry.num_q_blocks:  # no rows tell patterns apart
            pattern_id = torch.zeros_like(pattern_id)
        with on_device(self.indices):
            return self._plan(pattern_id, provenance)

    def _plan(self, pattern_id: Tensor, provenance: Provenance) -> Plan:
        device, geometry = self.indices.device, self.geometry
        status = new_status(device)
        capacity = check_room(self.room, "from_topk", "pass capacity=, ")
        bits = self.found(status)
        row_ptr, col, tile_id = listing(
            bits.listed, bits.full, bits.counts, geometry.num_k_blocks, capacity, status,
            tiles=0 if bits.tiles is None else 1,
        )  # fmt: skip
        return Plan(
            geometry=geometry,
            pattern_id=pattern_id,
            row_ptr=row_ptr,
            col=col,
            tile_id=tile_id,
            tiles=self.tiles_of(bits),
            provenance=provenance,
            status=status,
        )

    def bits_of_lists(self, status: Tensor) -> Tensor:
        """int32 [lists, words of all blocks]: the bits of each list of tokens, one a Q block."""
        geometry, lists = self.geometry, self.patterns * self.indices.shape[2]
        words = geometry.num_k_blocks * geometry.axes.words
        empty = not lists or not words or not self.indices.shape[3]
        bits = self._empty(lists, words, zero=empty or not self.in_cuda)
        if not empty and self.in_cuda:
            self._read_in_cuda(bits, status, None)
        elif not empty:
            self._read_in_triton(bits, status)
        return bits

    def tiles_of(self, found: "FoundBlocks") -> Tensor:
        """int32 [T, bq, words]: the tiles, none where no block can be partial."""
        if found.tiles is not None:
            return found.tiles
        return self._empty(0, self.geometry.block_size[0], self.geometry.axes.words)

    def found(self, status: Tensor) -> "FoundBlocks":
        """The blocks of the lists as bits, and their tiles.

        Raises:
            PlanError: if there could be more tiles than 32-bit numbers count.
        """
        if not self.lines or not self.indices.shape[3] or not self.geometry.num_k_blocks:
            shape = (self.lines, words_of(self.geometry.num_k_blocks))
            listed = torch.zeros(shape, dtype=torch.int32, device=self.indices.device)
            counts = torch.zeros(self.lines, dtype=torch.int32, device=self.indices.device)
            return FoundBlocks(listed=listed, full=listed, counts=counts, tiles=None)
        if self.unit_block:
            return self._bits_of_blocks(status)
        return self._bits_of_tokens(status)

    def _empty(self, *shape: int, zero: bool = False) -> Tensor:
        make = torch.zeros if zero else torch.empty
        return make(shape, dtype=torch.int32, device=self.indices.device)

    def _bits_of_tokens(self, status: Tensor) -> "FoundBlocks":
        geometry, lines = self.geometry, self.lines
        (bq, bk), words, blocks = geometry.block_size, geometry.axes.words, geometry.num_k_blocks
        listed = self._empty(lines, words_of(blocks))
        full = self._empty(lines, words_of(blocks))
        in_cuda = self.in_cuda
        tiles = None
        if not self.whole:
            check_room(lines * blocks, "from_topk", _NO_TILES)
            tiles = self._empty(lines * blocks, bq, words, zero=not in_cuda and self.per_row == bq)
        if in_cuda and self.per_row == 1:
            counts = self._empty(lines)
            self._read_in_cuda(tiles, status, (listed, full, counts))
            return FoundBlocks(listed=listed, full=full, counts=counts, tiles=tiles)
        bits = tiles
        if bits is None or self.per_row != bq:
            bits = self._empty(lines * blocks, self.per_row, words, zero=not in_cuda)
        if in_cuda:
            self._read_in_cuda(bits, status, None)
        else:
            self._read_in_triton(bits, status)
        from maskplan.device.topk_triton import classify_kernel, tiles_kernel

        grid = (lines, words_of(blocks))
        classify_kernel[grid](
            bits, listed, full, geometry.seqlen_q, geometry.seqlen_k, blocks,
            geometry.num_q_blocks, status, LISTS=self.per_row, BLOCK_Q=bq, BLOCK_K=bk, WORDS=words,
            WHOLE=self.whole, CHUNK=power_of_two(self.per_row * words, 1, 64),
        )  # fmt: skip
        if tiles is not None and bits is not tiles:
            tiles_kernel[grid](
                bits, tiles, listed, full, geometry.seqlen_q, geometry.seqlen_k, blocks,
                self.indices.shape[2], geometry.num_q_blocks, MARKS=False, LISTS=self.per_row,
                BLOCK_Q=bq, BLOCK_K=bk, WORDS=words, CHUNK=power_of_two(bq * words, 1, 512),
            )  # fmt: skip
        return FoundBlocks(listed=listed, full=full, counts=counted(listed)[1], tiles=tiles)

    def _bits_of_blocks(self, status: Tensor) -> "FoundBlocks":
        from maskplan.device.topk_triton import classify_blocks_kernel, tiles_kernel

        geometry, lines = self.geometry, self.lines
        (bq, bk), words, blocks = geometry.block_size, geometry.axes.words, geometry.num_k_blocks
        width = words_of(blocks)
        in_cuda = self.in_cuda
        marks = self._empty(self.patterns * self.indices.shape[2], width, zero=not in_cuda)
        if in_cuda:
            self._read_in_cuda(marks, status, None)
        else:
            self._read_in_triton(marks, status)
        if self.per_row == 1:
            return FoundBlocks(listed=marks, full=marks, counts=counted(marks)[1], tiles=None)
        listed, full = self._empty(lines, width), self._empty(lines, width)
        block = power_of_two(width, 1, 128)
        classify_blocks_kernel[(lines, -(-width // block))](
            marks, listed, full, geometry.seqlen_q, width, self.indices.shape[2],
            geometry.num_q_blocks, status, LISTS=bq, WHOLE=self.whole, BLOCK_W=block,
        )  # fmt: skip
        tiles = None
        if not self.whole:
            check_room(lines * blocks, "from_topk", _NO_TILES)
            tiles = self._empty(lines * blocks, bq, words)
            tiles_kernel[(lines, width)](
                marks, tiles, listed, full, geometry.seqlen_q, geometry.seqlen_k, blocks,
                self.indices.shape[2], geometry.num_q_blocks, MARKS=True, LISTS=bq, BLOCK_Q=bq,
                BLOCK_K=bk, WORDS=words, CHUNK=power_of_two(bq * words, 1, 512),
            )  # fmt: skip
        return FoundBlocks(listed=listed, full=full, counts=counted(listed)[1], tiles=tiles)

    def _read_in_triton(self, bits: Tensor, status: Tensor) -> None:
        from maskplan.device.topk_triton import read_kernel

        lists, topk = self.indices.shape[2:]
        lengths = self.lengths
        grid = (self.patterns * lists, -(-topk // (_RUNS * WORD_BITS)))
        read_kernel[grid](
            self.indices, *self.indices.stride(),
            status if lengths is None else lengths, *((0, 0, 0) if lengths is None else
                                                      lengths.stride()),
            bits, self.indices.shape[1], lists, topk, self.limit,
            self.limit if self.is_global else 0, self.geometry.num_k_blocks, self.per_row,
            self.geometry.num_q_blocks, status, UNIT_BLOCK=self.unit_block,
            LENGTHS=lengths is not None, BLOCK_K=self.geometry.block_size[1],
            WORDS=self.geometry.axes.words, RUNS=_RUNS,
        )  # fmt: skip

    def _read_in_cuda(
        self, bits: Tensor | None, status: Tensor, out: tuple[Tensor, Tensor, Tensor] | None
    ) -> None:
        """Run `read_lists.cu`; with `out` = (listed, full, counts) it classifies."""
        indices, geometry = self.indices, self.geometry
        (bq, bk), words, blocks = geometry.block_size, geometry.axes.words, geometry.num_k_blocks
        lists, topk = indices.shape[2:]
        if self.unit_block:  # a block is a key here, and a word a block
            bk, words, blocks = WORD_BITS, 1, words_of(blocks)
        device, stream = place_of(indices)
        kernel, room = reader(indices.dtype == torch.int64, bk, words, out is not None, device)
        a_pass = min(blocks, max(room // (words * 4) // WORD_BITS, 1) * WORD_BITS)
        given = GivenLists(
            indices=indices.data_ptr(),
            strides=indices.stride(),
            lengths=0 if self.lengths is None else self.lengths.data_ptr(),
            length_strides=(0, 0, 0) if self.lengths is None else self.lengths.stride(),
            heads=indices.shape[1],
            lists=lists,
            topk=topk,
            limit=self.limit,
            keys=geometry.seqlen_k,
            batch_origin=self.limit if self.is_global else 0,
            blocks=blocks,
            blocks_a_pass=a_pass,
            lists_a_line=1 if self.unit_block else self.per_row,
            lines=lists if self.unit_block else geometry.num_q_blocks,
            queries=geometry.seqlen_q,
            tile_rows=bq,
            whole=self.whole,
        )
        listed, full, counts = (0, 0, 0) if out is None else (part.data_ptr() for part in out)
        found = FoundBits(0 if bits is None else bits.data_ptr(), listed, full, counts,
                       status.data_ptr())  # fmt: skip
        threads = 512 if topk >= 2048 else 256
        shared = -(-a_pass * words // 4) * 16 + SPARE
        kernel(self.patterns * lists, threads, shared, stream, (given, found))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBlocks:
    """What the lists hold.

    Attributes:
        listed: int32 [lines, ceil(N / 32)]: bits of the blocks of each line.
        full: int32 as `listed`: those of them that are full.
        counts: int32 [lines]: how many are listed.
        tiles: int32 [lines * N, bq, words]: bits of partial block n of a line at line * N + n;
            what belongs to no partial block is undefined. None where no block can be partial.
    """

    listed: Tensor
    full: Tensor
    counts: Tensor
    tiles: Tensor | None
