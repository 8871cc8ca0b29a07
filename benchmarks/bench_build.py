"""What it costs to make plans: each builder beside the least its input takes to read, or a peer.

Every figure is a median of interleaved runs in one process; ratios are to the work beside it.
Memory is the largest resident set during a call less the one before it, sampled every millisecond.
"""

import torch
from measure import growth, medians
from torch.nn.attention.flex_attention import create_block_mask

import maskplan as mp

SEQLEN_Q, TOPK, SEQLEN_K = 2048, 16_384, 131_072


def plan_mib(plan: mp.Plan) -> float:
    """Bytes of a plan's arrays, MiB."""
    tensors = (plan.pattern_id, plan.row_ptr, plan.col, plan.tile_id, plan.tiles)
    return sum(t.numel() * t.element_size() for t in tensors if t is not None) / 2**20


def row(name: str, milliseconds: float, note: str = "") -> None:
    print(f"  {name:44s} {milliseconds:10.2f}  {note}")


def whole_blocks(*, ascending: bool) -> torch.Tensor:
    """128 of 1024 blocks a query, as 16,384 tokens."""
    chosen = torch.stack([torch.randperm(SEQLEN_K // 128)[: TOPK // 128] for _ in range(SEQLEN_Q)])
    chosen = chosen.sort(1).values if ascending else chosen
    return (chosen[:, :, None] * 128 + torch.arange(128)).view(1, 1, SEQLEN_Q, TOPK).int()


def presence(indices: torch.Tensor) -> torch.Tensor:
    """Blocks by scatter into a presence matrix, as FlashMLA's users and our seed make them."""
    seen = torch.zeros(1, 1, SEQLEN_Q, SEQLEN_K // 128, dtype=torch.bool)
    return seen.scatter_(
        3, indices.long() // 128, torch.ones((), dtype=torch.bool).expand(indices.shape)
    )


def bench_topk() -> None:
    print(f"\ntop-k: {SEQLEN_Q} queries x {TOPK} int32 of {SEQLEN_K} keys, 128 MiB")
    for ascending in (True, False):
        lists = whole_blocks(ascending=ascending)
        plan = lambda lists=lists: mp.from_topk(lists, SEQLEN_K, block_size=(1, 128))
        got = medians({"max": lists.max, "plan": plan})
        order = "ascending" if ascending else "shuffled"
        row("indices.max()", got["max"])
        row(
            f"whole blocks, {order}, (1, 128)", got["plan"], f"{got['plan'] / got['max']:.2f} x max"
        )
    slow = medians({"scatter": lambda: presence(lists), "plan": plan}, runs=3)
    row(
        "presence matrix by scatter",
        slow["scatter"],
        f"{slow['scatter'] / slow['plan']:.0f} x plan",
    )
    made = plan()
    row("  plan, MiB", plan_mib(made))
    row("  grown beyond it, MiB", growth(plan) - plan_mib(made))
    row("  presence matrix grew, MiB", growth(lambda: presence(lists)))
    lists = torch.stack([torch.randperm(SEQLEN_K)[:TOPK] for _ in range(SEQLEN_Q)]).int()[
        None, None
    ]
    plan = lambda: mp.from_topk(lists, SEQLEN_K, block_size=(128, 128))
    got = medians({"max": lists.max, "plan": plan}, runs=3)
    made = plan()
    note = f"{got['plan'] / got['max']:.1f} x max; bits {plan_mib(made):.1f} MiB + indices 128 MiB"
    row("random tokens, (128, 128), exact bits", got["plan"], note)
    row("  grown beyond the plan, MiB", growth(plan) - plan_mib(made))


def bench_block_mask() -> None:
    print("\nblock mask: 40 heads x 591 x 591, 13.3 MiB")
    for density in (0.1, 0.5):
        mask = torch.rand(40, 591, 591) < density
        got = medians(
            {
                "nonzero": mask.nonzero,
                "plan": lambda mask=mask: mp.from_block_mask(mask, 75_600, 75_600),
            }
        )
        row("mask.nonzero()", got["nonzero"])
        row(
            f"lists, block density {density}",
            got["plan"],
            f"{got['plan'] / got['nonzero']:.2f} x nonzero",
        )


def bench_closed_forms() -> None:
    grid = mp.video.Grid(30, 48, 80)
    works = {
        "sliding tile, canvas 30 x 48 x 80": lambda: mp.video.sliding_tile(grid),
        "sliding tile, 21 x 45 x 80, ceil tiles": lambda: mp.video.sliding_tile(
            mp.video.Grid(21, 45, 80)
        ),
        "causal, 115,200 tokens": lambda: mp.causal(115_200, 115_200),
        "window of 8000, 115,200 tokens": lambda: mp.sliding_window(
            115_200, 115_200, left=4000, right=4000
        ),
        "documents, 800,000 tokens in 32, causal": lambda: mp.documents([25_000] * 32, causal=True),
        "documents, ragged": lambda: mp.documents([24_900 + 7 * i for i in range(32)], causal=True),
    }
    print("\nclosed forms, one head, blocks of 128")
    got = medians(works)
    for name, work in works.items():
        row(name, got[name], f"{work().num_blocks} blocks, grew {growth(work):.1f} MiB")


def bench_beside_flex() -> None:
    """At 8,192 tokens, where create_block_mask on a CPU ends in seconds and fits."""
    tokens = 8192
    grid = mp.video.Grid(8, 32, 32)
    order = mp.video.TokenOrder.tiles(grid, (4, 8, 8))
    tile = torch.repeat_interleave(torch.arange(len(order.tile_counts)), order.tile_counts)
    axes = [tile // 16, tile // 4 % 4, tile % 4]

    def near(q: torch.Tensor, k: torch.Tensor, axis: int, tiles: int) -> torch.Tensor:
        centre = axes[axis][q].clamp(1, tiles - 2)
        return (centre - axes[axis][k]).abs() <= 1

    masks = {
        "causal": lambda _b, _h, q, k: q >= k,
        "window": lambda _b, _h, q, k: (q - k).abs() <= 1000,
        "sliding tile": lambda _b, _h, q, k: near(q, k, 1, 4) & near(q, k, 2, 4),
    }
    plans = {
        "causal": lambda: mp.causal(tokens, tokens),
        "window": lambda: mp.sliding_window(tokens, tokens, left=1000, right=1000),
        "sliding tile": lambda: mp.video.sliding_tile(grid, tile=(4, 8, 8), window=(2, 3, 3)),
    }
    print(f"\nbeside FlexAttention's create_block_mask, {tokens} tokens")
    for name, fn in masks.items():
        flex = lambda fn=fn: create_block_mask(fn, 1, 1, tokens, tokens, device="cpu")
        own = lambda fn=fn: mp.from_mask_fn(fn, tokens, tokens)
        assert own() == plans[name](), name
        got = medians({"flex": flex, "plan": plans[name], "fn": own}, runs=3)
        row(f"{name}: create_block_mask", got["flex"], f"grew {growth(flex):.0f} MiB")
        row(f"{name}: closed form", got["plan"], f"1/{got['flex'] / got['plan']:.0f} of it")
        row(f"{name}: from_mask_fn", got["fn"], f"grew {growth(own):.0f} MiB")


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    print(f"threads {torch.get_num_threads()}, medians of interleaved runs, milliseconds")
    bench_topk()
    bench_block_mask()
    bench_closed_forms()
    bench_beside_flex()


if __name__ == "__main__":
    main()
