"""Calls of FA4's host programs, and what they should compute, in float64 by the definition."""

from dataclasses import dataclass

import torch

from tests.kernels.peers.fa4 import K_BLOCK, Q_BLOCK, Case


@dataclass
class Inputs:
    """What FA4 is given, and what it should look at.

    Attributes:
        q: [1, SQ, H, D].
        k: [1, SK, HK, D].
        v: likewise.
        grad: of O, like q.
        listed: bool [rows, columns], the blocks of the lists.
        keep: bool [SQ, SK], the pairs that count in them.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    grad: torch.Tensor
    listed: torch.Tensor
    keep: torch.Tensor

    @property
    def scale(self) -> float:
        return self.q.shape[-1] ** -0.5


def inputs(case: Case, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    of_queries = (1, case.seqlen, case.heads, case.head_dim)
    of_keys = (1, case.seqlen_k, case.kv_heads, case.head_dim)
    tensors = [
        torch.randn(shape, generator=generator).bfloat16()
        for shape in (of_queries, of_keys, of_keys, of_queries)
    ]
    rows, columns = case.list_shape
    listed = torch.ones(rows, columns, dtype=torch.bool)
    if case.sparse:
        listed = torch.rand(rows, columns, generator=generator) < 0.5
        listed[0] = True
        listed[-1] = False  # an empty row,
        listed[:, -1] = False  # an empty column,
        listed[-2:, 0] = True  # and rows of one block
        listed[-1, 0] = case.direction == "backward"  # FA4 zeroes dQ of no row
    keep = torch.ones(case.seqlen, case.seqlen_k, dtype=torch.bool)
    if case.mask is not None:
        keep = torch.rand(keep.shape, generator=generator) < 0.9
    return Inputs(*tensors, listed, keep.tril() if case.causal else keep)


def reference(case: Case, given: Inputs) -> tuple[torch.Tensor, ...]:
    """(O, LSE, dQ, dK, dV) in float64, [1, S, H, D] and [1, H, S]; empty rows give 0 and -inf."""
    q, k, v = (x.double().requires_grad_() for x in (given.q, given.k, given.v))
    keys, values = (x.repeat_interleave(case.group, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, keys) * given.scale
    seen = _seen(case, given)
    scores = scores.masked_fill(~seen, -torch.inf)
    empty = ~seen.any(1)
    probabilities = torch.softmax(scores.masked_fill(empty[:, None], 0), -1)
    probabilities = probabilities.masked_fill(empty[:, None], 0)
    out = torch.einsum("bhqk,bkhd->bqhd", probabilities, values)
    out.backward(given.grad.double())
    lse = torch.logsumexp(scores, -1)
    return out.detach(), lse.detach(), q.grad, k.grad, v.grad


def half_precision(case: Case, given: Inputs) -> tuple[torch.Tensor, ...]:
    """What torch's own bfloat16 attention makes of it: (O, dQ, dK, dV); empty rows give 0."""
    q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in (given.q, given.k, given.v))
    seen = _seen(case, given)
    empty = ~seen.any(1)
    keys, values = (x.repeat_interleave(case.group, 1) for x in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, keys, values, seen | empty[:, None])
    out = out.masked_fill(empty[:, None], 0)
    out.backward(given.grad.transpose(1, 2))
    return tuple(x.transpose(1, 2) for x in (out.detach(), q.grad, k.grad, v.grad))


def _seen(case: Case, given: Inputs) -> torch.Tensor:
    """Bool [SQ, SK]: which keys a query sees."""
    seen = given.listed.repeat_interleave(Q_BLOCK, 0).repeat_interleave(K_BLOCK, 1)
    return seen[: case.seqlen, : case.seqlen_k] & given.keep


def lists(listed: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(counts, indices) of each row's blocks, ascending; what is behind them is poison."""
    indices = torch.full((1, heads, *listed.shape), 1 << 20, dtype=torch.int32)
    for row, blocks in enumerate(listed):
        found = blocks.nonzero().flatten()
        indices[0, :, row, : len(found)] = found
    return listed.sum(1).int().repeat(1, heads, 1), indices


def block_sparse(case: Case, given: Inputs, *, transposed: bool = False) -> tuple | None:
    """The tuple that FA4's compiled functions take: (mask blocks, full blocks) and no orders.

    `transposed` lists are those of the backward.
    """
    if not case.sparse:
        return None
    whole = given.listed.clone()
    if case.mask is not None:
        for row, column in given.listed.nonzero().tolist():
            tokens = slice(row * Q_BLOCK, (row + 1) * Q_BLOCK)
            block = given.keep[tokens, column * K_BLOCK : (column + 1) * K_BLOCK]
            whole[row, column] = bool(block.all())
    found = []
    for listed in (given.listed & ~whole, whole):
        found += lists(listed.T if transposed else listed, case.list_heads)
    return (*found, None, None, None, None)


def mask_tables(case: Case, given: Inputs) -> tuple:
    """(what the mask function reads, scalars that it takes) as FA4's compiled functions take it."""
    if case.mask is None:
        return (None, None)
    from tests.kernels.peers.fa4_masks import MASKS

    seen = _seen(case, given) if case.mask != "dense" else given.keep
    return (MASKS[case.mask].tables(case, seen), None)


def call_forward(
    case: Case, given: Inputs, program, on_launch
) -> tuple[torch.Tensor, torch.Tensor]:
    """(O, LSE) of the forward."""
    out = torch.full_like(given.q, torch.nan)
    lse = torch.full((1, case.heads, case.seqlen), torch.nan)
    program(
        given.q, given.k, given.v, out, lse, given.scale, *[None] * 9,
        block_sparse(case, given), mask_tables(case, given), *[None] * 7, case.seqlen,
        on_launch=on_launch, unwritten=("argument 3", "argument 4"),
    )  # fmt: skip
    return out, lse


def call_backward(
    case: Case, given: Inputs, out: torch.Tensor, lse: torch.Tensor, programs, on_launch
) -> tuple[torch.Tensor, ...]:
    """(dQ, dK, dV) of preprocess, main and postprocess kernels."""
    preprocess, main, postprocess = programs
    q, k, v, grad = given.q, given.k, given.v, given.grad
    rows, columns = -(-case.seqlen // 128) * 128, -(-case.head_dim // 32) * 32
    row_sums, lse_log2 = (torch.full((1, case.heads, rows), torch.nan) for _ in range(2))
    accumulator = torch.full((1, case.heads, rows * columns), torch.nan)
    dq, dk, dv = (torch.full_like(x, torch.nan) for x in (q, k, v))
    heard = {"on_launch": on_launch}
    preprocess(
        out, grad, row_sums, lse, lse_log2, accumulator, *[None] * 5, given.scale, None, None,
        **heard,
    )  # fmt: skip
    main(
        q, k, v, grad, lse_log2, row_sums, accumulator, dk, dv, given.scale, *[None] * 9,
        (None, None), block_sparse(case, given, transposed=True), None, **heard,
    )  # fmt: skip
    postprocess(accumulator, dq, given.scale, *[None] * 4, **heard)
    return dq, dk, dv
