"""Does attention with a plan give what dense attention with the plan's mask gives?

Grouped-query attention, 8 query heads on 2 KV heads, a causal window; output and gradients. The
backend is "auto": the first of fa4, sm100, flex, cpu, reference that supports the call.
"""

import torch

import maskplan as mp

TOKENS, HEADS, KV_HEADS, CHANNELS = 300, 8, 2, 64


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    plan = mp.sliding_window(TOKENS, TOKENS, left=64, right=0, block_size=(32, 32))
    print(plan)

    shapes = [(1, TOKENS, heads, CHANNELS) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    print("\nbackends, in the order in which auto asks them:")
    for backend in mp.backends(*inputs, plan):
        print(f"  {backend}")
    out = mp.attention(*inputs, plan)
    gradients = torch.autograd.grad(out.sum(), inputs)

    q, k, v = (tensor.transpose(1, 2) for tensor in inputs)
    dense = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=plan.to_dense(), enable_gqa=True
    ).transpose(1, 2)
    expected = torch.autograd.grad(dense.sum(), inputs)

    print(f"\nlargest difference of the output: {(out - dense).abs().max():.1e}")
    for name, one, other in zip("qkv", gradients, expected, strict=True):
        print(f"largest difference of d{name}: {(one - other).abs().max():.1e}")


if __name__ == "__main__":
    main()
