"""Tables of tokens on a device: the kernels of `tokens_triton`, on tensors.

Nothing here waits for the device, and every size follows from shapes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.device.list_writer import write_tables
from maskplan.device.lists import on_device, power_of_two
from maskplan.device.nvrtc import runs
from maskplan.device.status import new_status
from maskplan.device.topk import TopkLists
from maskplan.geometry import Geometry

KEYS = 128  # of a logical block
_CHUNK, _AHEAD, _PARTS, _FILL = 512, 8, 128, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLists:
    """Top-k lists on a device, and how tiles are cut from them.

    Attributes:
        indices: int32 or int64 [b, h * group, SQ, topk], any strides; the lists of a tile are those
            of its tokens in each head of a group.
        lengths: int64 [b, h * group, SQ], any strides, or None.
        is_global: indices count over all batches.
        seqlen_k: SK.
        group: lists of a token in a tile.
        tile_tokens: tokens of a tile.
        tile_rows: packed rows of a tile.
        policy: "uniform", "union" or "representative".
        most: keys beyond which a union of differing rows is recorded.
        capacity: room for keys in a list, or None for as many as there can be.
    """

    indices: Tensor
    lengths: Tensor | None
    is_global: bool
    seqlen_k: int
    group: int
    tile_tokens: int
    tile_rows: int
    policy: str
    most: int
    capacity: int | None

    @property
    def width(self) -> int:
        """Slots of a tile's list: a multiple of 128, and at least that."""
        many = self.tile_tokens * self.group if self.policy == "union" else 1
        room = min(self.indices.shape[3] * many, self.seqlen_k)
        if self.capacity is not None:
            room = min(room, self.capacity)
        return max(-(-room // KEYS), 1) * KEYS

    @property
    def tiles(self) -> int:
        """Tiles of a head."""
        return -(-self.indices.shape[2] // self.tile_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTables:
    """Tables of `maskplan.lower.token_tiles.TokenTiles`, [b, h, M, ...] of the lists' own axes.

    Attributes:
        table: int32 [b, h, M, L].
        counts: int32 [b, h, M].
        row_bits: int32 [b, h, M, rows, L / 32] of a union, else None.
        report: int64 [b, h, M, 4]: keys of the union or first row, keys of all rows, those of them
            in the list, whether the rows are alike.
        mask_cnt: int32 [b, h, M].
        mask_idx: int32 [b, h, M, L / 128].
        full_cnt: int32 [b, h, M].
        full_idx: int32 [b, h, M, L / 128].
        status: int32 [1].
    """

    table: Tensor
    counts: Tensor
    row_bits: Tensor | None
    report: Tensor
    mask_cnt: Tensor
    mask_idx: Tensor
    full_cnt: Tensor
    full_idx: Tensor
    status: Tensor


def token_tables(lists: TokenLists) -> TokenTables:
    """The tables of `lists`, made on their device."""
    with on_device(lists.indices):
        return _token_tables(lists)


def bits_of(lists: TokenLists, status: Tensor) -> Tensor:
    """int32 [b * h * group * SQ, words]: a row of bits over all keys for each list."""
    seqlen_q = lists.indices.shape[2]
    return TopkLists(
        indices=lists.indices,
        lengths=lists.lengths,
        geometry=Geometry(seqlen_q=seqlen_q, seqlen_k=lists.seqlen_k, block_size=(1, KEYS)),
        per_row=1,
        unit_block=False,
        is_global=lists.is_global,
        whole=False,
        capacity=None,
    ).bits_of_lists(status)


def _token_tables(lists: TokenLists) -> TokenTables:
    from maskplan.device import tokens_triton as kernels

    device = lists.indices.device
    status = new_status(device)
    bits = bits_of(lists, status)
    (b, given, seqlen_q, _), words = lists.indices.shape, bits.shape[1]
    shape = (b, given // lists.group, lists.tiles)
    total, width = shape[0] * shape[1] * shape[2], lists.width
    chunk = power_of_two(words, 32, _CHUNK)
    chunks = max(-(-words // chunk), 1)
    cut = (lists.tiles, lists.group, lists.tile_tokens)

    def empty(*sizes: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(sizes, dtype=dtype, device=device)

    alone = lists.tile_tokens * lists.group == 1
    chosen, parts = bits if alone else empty(total, words), empty(total, chunks, 4)
    kernels.choose_kernel[(total, chunks)](
        bits, chosen, parts, seqlen_q, words, *cut, FIRST=lists.policy == "representative",
        ALONE=alone, AHEAD=power_of_two(lists.tile_tokens, 1, _AHEAD), CHUNK=chunk,
    )  # fmt: skip
    table, counts = empty(*shape, width), empty(*shape)
    report = empty(*shape, 4, dtype=torch.int64)
    if runs(table):
        write_tables(chosen, parts, table, counts, report, status, chunk=chunk, most=lists.most,
                     policy=lists.policy)  # fmt: skip
    else:
        kernels.table_kernel[(total, chunks)](
            chosen, parts, table, counts, report, status, words, width, lists.most,
            UNIFORM=lists.policy == "uniform", UNION=lists.policy == "union", CHUNK=chunk,
            BLOCK_W=32, PARTS=power_of_two(chunks, 1, _PARTS), FILL=_FILL,
        )  # fmt: skip
    row_bits, every = None, counts
    if lists.policy == "union":
        out_words = width // 32
        every = empty(total, out_words)
        row_bits = torch.zeros(*shape, lists.tile_rows, out_words, dtype=torch.int32, device=device)
        block = power_of_two(out_words, 1, 32)
        kernels.row_bits_kernel[(total, -(-out_words // block))](
            bits, table, counts, row_bits, every, seqlen_q, words, *cut,
            lists.tile_rows // (lists.tile_tokens * lists.group), lists.tile_rows, width,
            AHEAD=power_of_two(lists.tile_tokens, 1, _AHEAD // 2), BLOCK_W=block,
        )  # fmt: skip
    blocks = width // KEYS
    mask_cnt, full_cnt = empty(*shape), empty(*shape)
    mask_idx, full_idx = empty(*shape, blocks), empty(*shape, blocks)
    kernels.blocks_kernel[(total,)](
        counts, every, mask_cnt, mask_idx, full_cnt, full_idx, blocks, BITS=row_bits is not None,
        BLOCK=power_of_two(blocks, 1, 1024),
    )  # fmt: skip
    return TokenTables(
        table=table,
        counts=counts,
        row_bits=row_bits,
        report=report,
        mask_cnt=mask_cnt,
        mask_idx=mask_idx,
        full_cnt=full_cnt,
        full_idx=full_idx,
        status=status,
    )
