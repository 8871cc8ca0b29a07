"""A covering array of the backward: cases that meet every pair of values, and how one is verified.

Their forwards are those of the forward's array.
"""

from dataclasses import dataclass

import maskplan as mp
from maskplan.attention import sm100_backward
from tests.kernels.attention.forward_array import plan_for
from tests.kernels.attention.test_emulated import BACKEND

FACTORS = {
    "direction": ("loop_q", "loop_k"),
    "heads": ("1/1", "2/2", "4/2 looped", "4/1 packed"),
    "lists": ("one", "a KV head", "a query head"),
    "batch": ("one", "lists shared", "lists its own"),
    "head_dim": (64, 128),
    "dtype": ("bfloat16", "float16"),
    "lengths": ((1, 130), (32, 257), (100, 1), (130, 200), (300, 128)),
    "mask": ("none", "tokens", "causal", "blocks"),
}
# Direction, group, packed or not, D, dtype.
KERNELS = {
    ("loop_q", 1, False, 128, "bfloat16"), ("loop_q", 1, False, 64, "bfloat16"),
    ("loop_q", 2, False, 64, "float16"), ("loop_q", 4, True, 64, "bfloat16"),
    ("loop_k", 1, False, 128, "float16"), ("loop_k", 1, False, 64, "bfloat16"),
    ("loop_k", 2, False, 128, "bfloat16"), ("loop_k", 4, True, 128, "float16"),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A value of each factor; lengths are (SQ, SK)."""

    direction: str
    heads: str
    lists: str
    batch: str
    head_dim: int
    dtype: str
    lengths: tuple[int, int]
    mask: str


# Made by a greedy search over what `impossible`, KERNELS and the forward's KERNELS allow.
CASES = [
    Case("loop_k", "1/1", "one", "lists its own", 128, "float16", (100, 1), "tokens"),
    Case("loop_k", "1/1", "one", "lists its own", 64, "bfloat16", (130, 200), "causal"),
    Case("loop_k", "1/1", "one", "lists shared", 128, "float16", (1, 130), "causal"),
    Case("loop_k", "1/1", "one", "one", 128, "float16", (32, 257), "blocks"),
    Case("loop_k", "2/2", "a KV head", "lists its own", 128, "float16", (32, 257), "none"),
    Case("loop_k", "2/2", "a KV head", "lists shared", 64, "bfloat16", (100, 1), "blocks"),
    Case("loop_k", "2/2", "a KV head", "one", 64, "bfloat16", (300, 128), "causal"),
    Case("loop_k", "4/1 packed", "one", "one", 128, "float16", (1, 130), "none"),
    Case("loop_k", "4/2 looped", "a KV head", "one", 128, "bfloat16", (32, 257), "none"),
    Case("loop_k", "4/2 looped", "a query head", "one", 128, "bfloat16", (1, 130), "blocks"),
    Case("loop_k", "4/2 looped", "a query head", "one", 128, "bfloat16", (100, 1), "causal"),
    Case("loop_k", "4/2 looped", "a query head", "one", 128, "bfloat16", (32, 257), "none"),
    Case("loop_k", "4/2 looped", "one", "one", 128, "bfloat16", (100, 1), "none"),
    Case("loop_q", "1/1", "one", "lists shared", 128, "bfloat16", (300, 128), "none"),
    Case("loop_q", "2/2", "a KV head", "lists its own", 64, "bfloat16", (1, 130), "tokens"),
    Case("loop_q", "2/2", "a KV head", "one", 128, "bfloat16", (130, 200), "none"),
    Case("loop_q", "2/2", "one", "one", 64, "bfloat16", (300, 128), "tokens"),
    Case("loop_q", "4/1 packed", "one", "lists its own", 64, "bfloat16", (1, 130), "blocks"),
    Case("loop_q", "4/1 packed", "one", "lists shared", 64, "bfloat16", (32, 257), "causal"),
    Case("loop_q", "4/1 packed", "one", "one", 64, "bfloat16", (100, 1), "none"),
    Case("loop_q", "4/1 packed", "one", "one", 64, "bfloat16", (130, 200), "blocks"),
    Case("loop_q", "4/1 packed", "one", "one", 64, "bfloat16", (300, 128), "blocks"),
    Case("loop_q", "4/1 packed", "one", "one", 64, "bfloat16", (32, 257), "tokens"),
    Case(
        "loop_q", "4/2 looped", "a query head", "lists its own", 64, "float16", (300, 128), "none"
    ),
    Case(
        "loop_q", "4/2 looped", "a query head", "lists shared", 64, "float16", (130, 200), "tokens"
    ),
]


def kernel_of(config):
    """What of a `BackwardConfig` the cases decide; the rest is as it is by default."""
    assert (config.parts, config.head_split, config.deterministic) == (1, 1, False)
    return config.direction, config.group, config.pack_gqa, config.head_dim, config.dtype


def check(monkeypatch, case):
    """Every (batch, head, block) of every gradient, within its error budget."""
    launched = []
    real = sm100_backward.backward_config
    monkeypatch.setattr(
        sm100_backward,
        "backward_config",
        lambda *arguments: launched.append(real(*arguments)) or launched[-1],
    )
    lowered, options = plan_for(case, *case.lengths, backward=(case.direction,))

    report = mp.verify(lowered, backend=BACKEND, backward=case.direction, **options)

    report.raise_if_failed()
    assert [c.name for c in report.comparisons] == ["out", "lse", "dq", "dk", "dv"]
    assert [c.name for c in report.derivatives] == ["along q", "along k", "along v"]
    assert {kernel_of(config) for config in launched} <= KERNELS
    assert len(launched) == 1
