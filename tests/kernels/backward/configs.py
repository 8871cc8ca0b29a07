"""Configurations that the tests of the backward share, so that few kernels are compiled.

They are rows of a covering array: `test_cover.py` checks that every pair of options which go
together is in one of them, and beside every kind of mask, list and length.
"""

from kernels_sm100.backward_config import BackwardConfig

Q_128 = BackwardConfig(dtype="float16", parts=2)
Q_64 = BackwardConfig(head_dim=64, dtype="float16", group=2, parts=2)
TURNS = BackwardConfig(head_dim=64, dtype="float16", group=4, parts=4, deterministic=True)
UP = BackwardConfig(head_dim=64, deterministic=True, spt=True)
DOWN = BackwardConfig(head_dim=64, descending=True)
PACKED = BackwardConfig(group=16, pack_gqa=True, parts=2, deterministic=True, descending=True)
SPLIT = BackwardConfig(head_dim=64, dtype="float16", group=4, head_split=2)
# D 128 with everything that takes registers.
FULL = BackwardConfig(group=8, parts=4, head_split=2, descending=True)
K_128 = BackwardConfig(direction="loop_k", group=2)
K_64 = BackwardConfig(direction="loop_k", head_dim=64)
K_PACKED = BackwardConfig(direction="loop_k", head_dim=64, group=4, pack_gqa=True)
K_DOWN = BackwardConfig(
    direction="loop_k", dtype="float16", group=32, pack_gqa=True, descending=True
)
ALL = {
    "q_128": Q_128, "q_64": Q_64, "turns": TURNS, "up": UP, "down": DOWN, "packed": PACKED,
    "split": SPLIT, "full": FULL, "k_128": K_128, "k_64": K_64, "k_packed": K_PACKED,
    "k_down": K_DOWN,
}  # fmt: skip
