"""What `print` says of token tiles."""

import torch

import maskplan as mp


def test_tiles_of_tokens_say_what_is_kept_and_what_is_visited_in_vain():
    indices = torch.tensor([[0, 1, 2], [1, 2, 5], [7, -1, 7]])[None, None]
    union = mp.TokenTiles.from_topk(indices, 100, policy="union", group=8)
    assert str(union) == (
        "TokenTiles: 3 x 100 tokens, union, listed as tokens\n"
        "1 tiles of 128 rows (16 tokens x 8 heads); batch 1, heads 1; "
        "5 to 5 keys a tile, 5.0 on average\n"
        f"56 pairs wanted, all kept, 2.14 visited for each (64 spurious); {union.nbytes:,} bytes"
    )
    first = mp.TokenTiles.from_topk(indices, 100, policy="representative")
    assert "7 pairs wanted, 5 kept (71.43%), 1.29 visited for each (4 spurious)" in str(first)


def test_tiles_of_blocks_and_no_tiles_say_so():
    lists = torch.arange(128).expand(1, 1, 200, 128)
    assert "uniform, listed as blocks\n2 tiles of 128 rows (128 tokens)" in str(
        mp.TokenTiles.from_topk(lists, 300)
    )
    nothing = str(mp.TokenTiles.from_topk(lists[:, :, :0], 300))
    assert "0 tiles of 128 rows" in nothing
    assert "no tiles\n0 pairs wanted, all kept (0 spurious)" in nothing
