"""The Triton kernel of padded lists."""

import triton
import triton.language as tl

from maskplan.device.bits_triton import below, raise_status
from maskplan.device.lists_triton import fill_none


@triton.jit
def order_of(
    pattern, row, column, keep, turned, turned_before, lengths, cols, turned_words,
    ORDER: tl.constexpr,
):  # fmt: skip
    """The rank of a row among the rows that list each column, ascending or (ORDER 2) descending."""
    other = pattern * cols + column
    word_at = other * turned_words + (row >> 5)
    word = tl.load(turned + word_at, mask=keep, other=0)
    order = tl.load(turned_before + word_at, mask=keep, other=0) + below(word, row & 31)
    if ORDER == 2:
        order = tl.load(lengths + other, mask=keep, other=0) - 1 - order
    return order


@triton.jit
def padded_kernel(
    row_ptr, col, tile_id, pattern_id, counts, lists, turned, turned_before, lengths,
    rows, cols, turned_words, width, status,
    TILES: tl.constexpr, ORDER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Padded lists of one (batch, head, row) a program.

    `counts` are two arrays of as many entries as there are programs, of mask and of full blocks;
    `lists` are arrays of `width` slots each: mask blocks, full blocks, tiles of mask blocks, and
    the order of mask and of full blocks. ORDER: 0 none; 1, also the rank of this row among the rows
    that list the same column, which is read from the bits of the transposed lists; 2, the same in
    descending order.
    """
    out = tl.program_id(0).to(tl.int64)
    lines = tl.num_programs(0).to(tl.int64)
    plane = lines * width
    row = (out % rows).to(tl.int32)
    pattern = tl.load(pattern_id + out // rows).to(tl.int64)
    line = pattern * rows + row
    start = tl.load(row_ptr + line)
    count = (tl.load(row_ptr + line + 1) - start).to(tl.int32)
    lane = tl.arange(0, BLOCK)
    own = lists + out * width
    masks = tl.zeros([], tl.int32)
    if TILES:
        for first in range(0, count, BLOCK):
            at = first + lane
            inside = at < count
            column = tl.load(col + start + at, mask=inside, other=0)
            tile = tl.load(tile_id + start + at, mask=inside, other=-1)
            is_mask = (tile >= 0).to(tl.int32)
            nth = masks + tl.cumsum(is_mask, 0) - is_mask
            masks += tl.sum(is_mask, 0)
            place = tl.where(is_mask == 1, nth, at - nth)
            keep = inside & (place < width)
            of_kind = (1 - is_mask) * plane + place
            tl.store(own + of_kind, column, mask=keep)
            tl.store(own + 2 * plane + place, tile, mask=keep & (is_mask == 1))
            if ORDER:
                order = order_of(
                    pattern, row, column, keep, turned, turned_before, lengths, cols, turned_words,
                    ORDER,
                )  # fmt: skip
                tl.store(own + 3 * plane + of_kind, order, mask=keep)
        held = tl.minimum(masks, width)
        fill_none(own, held, width, 0, 1, BLOCK)
        fill_none(own + 2 * plane, held, width, 0, 1, BLOCK)
        full = tl.minimum(count - masks, width)
        fill_none(own + plane, full, width, 0, 1, BLOCK)
        if ORDER:
            fill_none(own + 3 * plane, held, width, 0, 1, BLOCK)
            fill_none(own + 4 * plane, full, width, 0, 1, BLOCK)
    else:  # the list as it stands, and -1 in all else, slot by slot
        none = tl.full([BLOCK], -1, tl.int32)
        for first in range(0, width, BLOCK):
            slot = first + lane
            inside, keep = slot < width, slot < tl.minimum(count, width)
            column = tl.load(col + start + slot, mask=keep, other=-1)
            tl.store(own + slot, none, mask=inside)
            tl.store(own + plane + slot, column, mask=inside)
            tl.store(own + 2 * plane + slot, none, mask=inside)
            if ORDER:
                order = order_of(
                    pattern, row, column, keep, turned, turned_before, lengths, cols, turned_words,
                    ORDER,
                )  # fmt: skip
                tl.store(own + 3 * plane + slot, none, mask=inside)
                tl.store(own + 4 * plane + slot, tl.where(keep, order, -1), mask=inside)
    raise_status(status, 2, (masks > width) | (count - masks > width))
    tl.store(counts + out, tl.minimum(masks, width))
    tl.store(counts + lines + out, tl.minimum(count - masks, width))
