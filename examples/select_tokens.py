"""How does a query attend to the single tokens that an indexer picked for it?

As in DeepSeek's sparse attention: a small indexer scores every earlier key for each query token,
and the 64 best are attended to, by all 16 query heads of the one KV head. Keys lie apart, so they
are gathered one by one; a selection that comes in whole blocks is recognised by what it is.
"""

import torch
from torch import Tensor

import maskplan as mp

TOKENS, HEADS, CHANNELS, INDEXER_CHANNELS, TOPK = 1024, 16, 64, 16, 64


def main() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    # The indexer: scores of its own small queries and keys, causal; -1 where there are fewer keys.
    scores = draw(TOKENS, INDEXER_CHANNELS) @ draw(TOKENS, INDEXER_CHANNELS).T
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    best = scores.masked_fill(later, -torch.inf).topk(TOPK)
    indices = best.indices.masked_fill(best.values == -torch.inf, -1).int()[None, None]

    plan = mp.from_topk(indices, TOKENS)
    print(plan)
    print(f"{TOPK} keys a token: {plan.density:.1%} of the pairs, {plan.num_blocks} of 64 blocks")
    lowered = plan.lower("cpu")
    print(f"the cpu backend reads them by {lowered.form}")

    # The same for kernels: tiles of 128 packed rows are 8 tokens of 16 heads, exact by bits.
    tiles = mp.TokenTiles.from_topk(indices, TOKENS, policy="union", group=HEADS)
    print(f"\n{tiles}")
    try:
        mp.TokenTiles.from_topk(indices, TOKENS, group=HEADS)
    except mp.PlanError as error:
        print(f"one list a tile is refused: {error}")

    q = draw(1, TOKENS, HEADS, CHANNELS).requires_grad_()
    k, v = (draw(1, TOKENS, 1, CHANNELS).requires_grad_() for _ in range(2))
    results = {}
    for name, given in {"plan": lowered, "tiles": tiles}.items():
        out = mp.attention(q, k, v, given)
        results[name] = (out, *torch.autograd.grad(out.square().sum(), (q, k, v)))
    dense = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=plan.to_dense()[0, 0], enable_gqa=True
    ).transpose(1, 2)
    wanted = (dense, *torch.autograd.grad(dense.square().sum(), (q, k, v)))
    print("\nlargest difference to a dense mask:")
    for name, found in results.items():
        errors = [f"{(a - b).abs().max():.0e}" for a, b in zip(found, wanted, strict=True)]
        print(f"  {name}: out {errors[0]}, dq {errors[1]}, dk {errors[2]}, dv {errors[3]}")

    # Selections that come in whole blocks of 128 need no table of tokens. It is measured.
    whole = torch.arange(256).expand(1, 1, TOKENS, 256)
    for shift in (0, 1):
        tiles = mp.TokenTiles.from_topk(whole + shift, TOKENS)
        print(f"256 keys from {shift} on: {tiles.form}, {tiles.nbytes:,} bytes")


if __name__ == "__main__":
    main()
