"""Lists for token tiles, and what tiles say read back by loops."""

from math import ceil

import torch

import maskplan as mp


def wanted_rows(indices: torch.Tensor) -> list:
    """[b][h][q] -> set of keys, by loops."""
    return [[[{k for k in row if k != -1} for row in h] for h in b] for b in indices.tolist()]


def read_rows(tiles: mp.TokenTiles, b: int, h: int) -> list[set[int]]:
    """The keys each packed row of a head attends, by loops over the tables; checks the tables."""
    rows = []
    total = tiles.seqlen_q * tiles.rows_per_token
    for m in range(ceil(total / tiles.tile_rows)):
        table = tiles.tile_token_indices[b, h, m].tolist()
        count = int(tiles.valid_counts[b, h, m])
        keys = table[:count]
        assert keys == sorted(set(keys))
        assert all(0 <= key < tiles.seqlen_k for key in keys)
        assert table[count:] == [-1] * (len(table) - count)
        for row in range(min(tiles.tile_rows, total - m * tiles.tile_rows)):
            if tiles.row_bits is None:
                rows.append(set(keys))
                continue
            words = tiles.row_bits[b, h, m, row].tolist()
            seen = {i for i in range(len(table)) if words[i // 32] >> (i % 32) & 1}
            assert all(i < count for i in seen)
            rows.append({keys[i] for i in seen})
        check_blocks(tiles, (b, h, m), count, rows[m * tiles.tile_rows :])
    return rows


def check_blocks(tiles, place, count, rows):
    """Each block of the list once, ascending, and full exactly where no row needs a mask."""
    lists = tiles.blocks
    full = [n for n in lists.full_block_idx[place].tolist() if n >= 0]
    mask = [n for n in lists.mask_block_idx[place].tolist() if n >= 0]
    keys = tiles.tile_token_indices[place].tolist()[:count]
    want = [
        n
        for n in range(count // 128)
        if all(set(keys[128 * n : 128 * n + 128]) <= row for row in rows)
    ]
    assert full == want
    assert mask == sorted(set(range(ceil(count / 128))) - set(want))
    assert lists.full_block_cnt[place] == len(full)
    assert lists.mask_block_cnt[place] == len(mask)


def random_lists(shape, topk, seqlen_k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, seqlen_k, generator=generator).argsort(-1)[..., :topk].int()
