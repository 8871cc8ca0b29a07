"""How do top-k key indices become the lists that a kernel walks?

Each of 256 queries selects 24 keys near its own position. The plan keeps exactly those pairs: where
a block is visited for some of its pairs only, bits say which.
"""

import torch

import maskplan as mp

QUERIES, KEYS, TOPK = 256, 512, 24


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    nearby = torch.randn(1, 1, QUERIES, TOPK, generator=generator) * 20
    indices = (nearby + torch.arange(QUERIES)[:, None] * KEYS / QUERIES).long().clamp(0, KEYS - 1)
    plan = mp.from_topk(indices, KEYS, block_size=(64, 32))
    print(plan)

    lists = plan.block_sparse_tensors()
    print("\npartial blocks of each Q block, padded with -1:")
    print(lists.mask_block_idx[0, 0])
    print(f"a kernel visits {mp.amplification(plan):.1f} pairs for each one selected")


if __name__ == "__main__":
    main()
