"""Compiled fill of padded block lists."""

from maskplan.jit import kernel


@kernel
def count_kinds(row_ptr, tile_id, full_cnt, mask_cnt):
    """Full and mask blocks of each row into int32 [lines]; `tile_id` empty: all full."""
    for line in range(row_ptr.size - 1):
        full = row_ptr[line + 1] - row_ptr[line]
        if tile_id.size:
            full = 0
            for entry in range(row_ptr[line], row_ptr[line + 1]):
                full += tile_id[entry] < 0
        full_cnt[line] = full
        mask_cnt[line] = row_ptr[line + 1] - row_ptr[line] - full


@kernel
def fill_kinds(row_ptr, tile_id, value, full, mask):
    """Spread int32 [blocks] `value` over padded [lines, width] of full and of mask blocks."""
    for line in range(row_ptr.size - 1):
        full_at, mask_at = 0, 0
        for entry in range(row_ptr[line], row_ptr[line + 1]):
            if tile_id.size and tile_id[entry] >= 0:
                mask[line, mask_at] = value[entry]
                mask_at += 1
            else:
                full[line, full_at] = value[entry]
                full_at += 1
