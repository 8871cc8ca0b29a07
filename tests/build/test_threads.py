"""Builders called from several threads at once."""

from concurrent.futures import ThreadPoolExecutor

import torch

import maskplan as mp


def make_all() -> list[mp.Plan]:
    generator = torch.Generator().manual_seed(0)
    lists = torch.randint(-1, 500, (2, 2, 300, 40), generator=generator)
    mask = torch.rand(3, 9, 9, generator=generator) < 0.3
    return [
        mp.from_topk(lists, 500, block_size=(16, 32)),
        mp.from_block_mask(mask, 1100, 1100),
        mp.documents([300, 0, 500], causal=True, block_size=(64, 32)),
        mp.from_token_mask(torch.ones(50, 70, dtype=torch.bool).tril(), block_size=(16, 16)),
        mp.from_mask_fn(lambda _b, _h, q, k: (q + k) % 3 == 0, 60, 60, block_size=(16, 16)),
        mp.video.sliding_tile(mp.video.Grid(5, 9, 8), tile=(2, 4, 4), window=(1, 2, 2)),
    ]


def test_plans_made_side_by_side_are_the_plans_made_alone():
    alone = make_all()
    with ThreadPoolExecutor(4) as pool:
        for together in pool.map(lambda _: make_all(), range(8)):
            assert together == alone
