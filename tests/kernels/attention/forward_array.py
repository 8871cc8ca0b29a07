"""A covering array of the forward: cases that meet every pair of values, and how one is verified.

Few kernels are compiled for it: those of `KERNELS`, most of which other tests need too.
"""

from dataclasses import asdict, dataclass

import torch

import maskplan as mp
from maskplan.attention import sm100_kernels
from tests.kernels.attention.test_emulated import BACKEND, mask_of
from tests.oracle import plan_of_dense

FACTORS = {
    "heads": ("1/1", "2/2", "4/2 looped", "8/2 packed", "128/1 packed"),
    "lists": ("one", "a KV head", "a query head"),
    "batch": ("one", "lists shared", "lists its own"),
    "head_dim": (64, 128),
    "dtype": ("bfloat16", "float16"),
    "seqlen_q": (1, 8, 128, 300),
    "seqlen_k": (1, 128, 300),
    "mask": ("none", "full", "tokens", "causal", "blocks", "skewed"),
}
# Query heads, KV heads, packed rows of a token.
HEADS = {
    "1/1": (1, 1, 1), "2/2": (2, 2, 1), "4/2 looped": (4, 2, 1), "8/2 packed": (8, 2, 4),
    "4/1 packed": (4, 1, 4), "128/1 packed": (128, 1, 128),
}  # fmt: skip
MANY = 8  # queries that 128 heads are met with at most
# Group, packed rows of a token, D, dtype, Q tiles of a CTA.
KERNELS = {
    (1, 1, 64, "bfloat16", 1), (1, 1, 64, "bfloat16", 2), (1, 1, 128, "bfloat16", 2),
    (1, 1, 128, "float16", 1), (2, 1, 64, "float16", 2), (2, 1, 64, "bfloat16", 2),
    (2, 1, 128, "bfloat16", 1), (4, 4, 64, "bfloat16", 1), (4, 4, 64, "bfloat16", 2),
    (4, 4, 128, "float16", 1), (128, 128, 64, "bfloat16", 2), (128, 128, 128, "float16", 1),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A value of each factor."""

    heads: str
    lists: str
    batch: str
    head_dim: int
    dtype: str
    seqlen_q: int
    seqlen_k: int
    mask: str


# Made by a greedy search over what `impossible` and KERNELS allow.
CASES = [
    Case("1/1", "one", "lists its own", 64, "bfloat16", 1, 1, "tokens"),
    Case("1/1", "one", "lists its own", 64, "bfloat16", 8, 300, "blocks"),
    Case("1/1", "one", "lists shared", 128, "bfloat16", 300, 1, "none"),
    Case("1/1", "one", "lists shared", 128, "float16", 128, 1, "full"),
    Case("1/1", "one", "one", 64, "bfloat16", 128, 128, "tokens"),
    Case("1/1", "one", "one", 64, "bfloat16", 300, 1, "skewed"),
    Case("1/1", "one", "one", 64, "bfloat16", 300, 300, "causal"),
    Case("128/1 packed", "one", "lists its own", 128, "float16", 1, 128, "none"),
    Case("128/1 packed", "one", "lists shared", 128, "float16", 1, 300, "skewed"),
    Case("128/1 packed", "one", "one", 128, "float16", 1, 1, "blocks"),
    Case("128/1 packed", "one", "one", 128, "float16", 1, 1, "causal"),
    Case("128/1 packed", "one", "one", 128, "float16", 1, 128, "tokens"),
    Case("128/1 packed", "one", "one", 64, "bfloat16", 8, 128, "full"),
    Case("2/2", "a KV head", "lists its own", 64, "bfloat16", 300, 128, "full"),
    Case("2/2", "a KV head", "lists shared", 64, "bfloat16", 128, 128, "blocks"),
    Case("2/2", "a KV head", "one", 128, "float16", 1, 300, "tokens"),
    Case("2/2", "a KV head", "one", 64, "bfloat16", 8, 1, "none"),
    Case("2/2", "one", "one", 64, "bfloat16", 128, 1, "skewed"),
    Case("2/2", "one", "one", 64, "bfloat16", 128, 128, "causal"),
    Case("4/2 looped", "a KV head", "one", 128, "bfloat16", 128, 128, "skewed"),
    Case("4/2 looped", "a query head", "lists its own", 128, "bfloat16", 128, 1, "causal"),
    Case("4/2 looped", "a query head", "lists shared", 128, "bfloat16", 8, 1, "tokens"),
    Case("4/2 looped", "a query head", "one", 128, "bfloat16", 1, 1, "skewed"),
    Case("4/2 looped", "a query head", "one", 128, "bfloat16", 1, 128, "blocks"),
    Case("4/2 looped", "a query head", "one", 128, "bfloat16", 128, 300, "none"),
    Case("4/2 looped", "a query head", "one", 64, "float16", 300, 128, "full"),
    Case("4/2 looped", "one", "one", 64, "bfloat16", 300, 128, "tokens"),
    Case("8/2 packed", "a KV head", "lists its own", 128, "float16", 8, 128, "skewed"),
    Case("8/2 packed", "a KV head", "lists shared", 64, "bfloat16", 1, 128, "causal"),
    Case("8/2 packed", "a KV head", "one", 64, "bfloat16", 1, 300, "full"),
    Case("8/2 packed", "a KV head", "one", 64, "bfloat16", 128, 128, "tokens"),
    Case("8/2 packed", "one", "one", 128, "float16", 8, 1, "causal"),
    Case("8/2 packed", "one", "one", 64, "bfloat16", 300, 128, "blocks"),
    Case("8/2 packed", "one", "one", 64, "bfloat16", 8, 128, "none"),
]


def impossible(values):
    """Of two factors' values, whether no case has both."""
    heads, lists = values.get("heads"), values.get("lists")
    if values.get("seqlen_q", 0) > MANY and heads == "128/1 packed":
        return True  # too slow to emulate
    if heads is None or lists is None:
        return False
    query_heads, kv_heads, packed = HEADS[heads]
    if lists == "a query head":  # packed heads share lists, and a group of one is the next line's
        return packed > 1 or query_heads == kv_heads
    return lists == "a KV head" and kv_heads == 1


def kernel_of(config):
    """What of a `ForwardConfig` the cases decide."""
    rows = config.rows_per_token
    return config.group, rows, config.head_dim, config.dtype, config.q_tiles


def plan_for(case, seqlen_q, seqlen_k, backward=()):
    """(the lowered plan of a case, the options of `verify`)."""
    heads, kv_heads, packed = HEADS[case.heads]
    planned = (
        2 if case.batch == "lists its own" else 1,
        {"one": 1, "a KV head": kv_heads, "a query head": heads}[case.lists],
    )
    mask = mask_of(case.mask, (*planned, seqlen_q, seqlen_k))
    patterns = torch.arange(planned[0] * planned[1]).view(planned)
    patterns = patterns.expand(1 if case.batch == "one" else 2, -1)
    dense = torch.from_numpy(mask.copy()).flatten(0, 1)
    plan = plan_of_dense(dense, patterns, (max(64 // packed, 1), 128)).canonical()
    target = mp.target(
        "sm100", head_dim=case.head_dim, group=heads // kv_heads, pack_gqa=packed > 1
    )
    options = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": case.head_dim,
        "dtype": getattr(torch, case.dtype),
        "samples": 10**6,
    }
    return plan.lower(target, backward=backward), options


def name_of(case):
    """For pytest."""
    return "-".join(map(str, asdict(case).values()))


def check(monkeypatch, case):
    """Every (batch, head, tile) of out and lse, within its error budget."""
    launched = []
    real = sm100_kernels.forward_config
    monkeypatch.setattr(
        sm100_kernels,
        "forward_config",
        lambda call: launched.append(real(call)) or launched[-1],
    )
    lowered, options = plan_for(case, case.seqlen_q, case.seqlen_k)

    report = mp.verify(lowered, backend=BACKEND, **options)

    report.raise_if_failed()
    assert [c.name for c in report.comparisons] == ["out", "lse"]
    assert {kernel_of(config) for config in launched} <= KERNELS
    assert launched
