"""Runs the forward kernel in the emulator, and judges what it wrote."""

from dataclasses import dataclass

import numpy as np
import torch

from kernels_sm100.config import ForwardConfig
from kernels_sm100.emulator import emulate
from kernels_sm100.forward_host import (
    FORWARD_SOURCES,
    build_forward,
    forward_arguments,
    tables_of,
)
from kernels_sm100.launch import compile_kernel
from tests.kernels.forward.walks import TILE, Tables, attention, tables

POISON = float("nan")
ALIGN = 128
# P is rounded to the dtype before P V, which torch's CPU kernels do not do: half a unit of a weight
# near 1, times values of about 2.
FLOOR = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def aligned(shape, dtype, fill=None):
    """A tensor at an address multiple of 128, so that runs do not depend on the allocator."""
    count = int(np.prod(shape))
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.zeros(count + ALIGN // size, dtype=dtype)
    start = -raw.data_ptr() // size % (ALIGN // size)
    out = raw[start : start + count].view(*shape)
    return out if fill is None else out.fill_(fill)


def table_tensors(walk: Tables, names):
    """Tensors of a walk's tables by name."""
    found = {}
    for name in names:
        array = torch.from_numpy(getattr(walk, name))
        found[name] = aligned(array.shape, array.dtype)
        found[name].copy_(array)
    return found


@dataclass(frozen=True)
class Problem:
    """Inputs of one call and the mask of each pattern, bool [PB, PH, SQ, SK]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    masks: np.ndarray
    scale: float


def problem(config, masks, *, batch=1, kv_heads=1, seed=0, spread=1.0):
    """Normal q, k, v; `spread` widens the scores."""
    generator = torch.Generator().manual_seed(seed)
    seqlen_q, seqlen_k = masks.shape[2:]
    dtype = getattr(torch, config.dtype)
    shapes = (
        (batch, seqlen_q, kv_heads * config.group, config.head_dim),
        (batch, seqlen_k, kv_heads, config.head_dim),
        (batch, seqlen_k, kv_heads, config.head_dim_v),
    )
    q, k, v = (aligned(shape, dtype) for shape in shapes)
    for tensor in (q, k, v):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    q.mul_(spread)
    return Problem(q, k, v, masks, config.head_dim**-0.5)


@dataclass(frozen=True)
class Outcome:
    """What a run wrote, and the emulator's report."""

    o: torch.Tensor
    lse: torch.Tensor
    report: object


class ForwardKernel:
    """One compiled configuration."""

    def __init__(self, config: ForwardConfig, cache, *, build=build_forward, sources=()):
        self.config = config
        self.compiled = compile_kernel(
            build, config, sources=(*FORWARD_SOURCES, *sources), cache=cache
        )

    def tables(self, masks, **options):
        """The walk of `masks` for this configuration."""
        tokens = options.pop("tokens", TILE // self.config.rows_per_token)
        return tables(masks, parts=self.config.parts, tokens=tokens, **options)

    def launch(self, given: Problem, on_launch, *, walk=None, out=None, ctas=1):
        """Call the host code; O and LSE, which are returned, start as NaN.

        `walk` has tables, those of `given.masks` if None, or is padded lists.
        """
        batch, seqlen_q, heads, _ = given.q.shape
        if out is None:
            o = (batch, seqlen_q, heads, self.config.head_dim_v)
            out = (
                aligned(o, given.q.dtype, POISON),
                aligned((batch, heads, seqlen_q), torch.float32, POISON),
            )
        walk = self.tables(given.masks) if walk is None else walk
        if isinstance(walk, Tables):
            walk = table_tensors(walk, tables_of(self.config))
        arguments = forward_arguments(
            self.config,
            given.q,
            given.k,
            given.v,
            *out,
            walk,
            scale=given.scale,
            ctas=ctas,
        )
        self.compiled.host_program(*arguments, on_launch=on_launch)
        return out

    def run(
        self,
        given: Problem,
        *,
        walk=None,
        out=None,
        ctas=1,
        schedule="random_eager",
        seed=0,
        **options,
    ):
        """Emulate one call."""
        reports = []

        def launched(launch, memory):
            reports.append(emulate(launch, memory, schedule=schedule, seed=seed, **options))

        o, lse = self.launch(given, launched, walk=walk, out=out, ctas=ctas)
        assert len(reports) == 1
        return Outcome(o, lse, reports[0])


def expected(given: Problem):
    """(O, LSE) in float64 from the definition."""
    q, k, v = (tensor.double().numpy() for tensor in (given.q, given.k, given.v))
    return attention(q, k, v, given.masks, given.scale)


def _torch_error(given: Problem, reference):
    """|torch's attention in this dtype - reference|, rows without a key left out."""
    batch, _, heads, _ = given.q.shape
    q, k, v = (tensor.transpose(1, 2) for tensor in (given.q, given.k, given.v))
    group = heads // k.shape[1]
    k, v = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
    plan_heads = np.arange(heads) * given.masks.shape[1] // heads
    plan_batches = np.arange(batch) % given.masks.shape[0]
    mask = torch.from_numpy(given.masks[plan_batches][:, plan_heads])
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=given.scale
    )
    error = np.abs(out.transpose(1, 2).double().numpy() - reference)
    return np.where(mask.any(-1).numpy().transpose(0, 2, 1)[..., None], error, 0.0)


def judge(given: Problem, outcome: Outcome):
    """Largest part of the error budget that any (batch, head, Q tile) used; fails beyond 1.

    The budget is twice the error of torch's attention in the same dtype on the same inputs plus a
    floor; rows without a key are exact.
    """
    o_wanted, lse_wanted = expected(given)
    o, lse = outcome.o.double().numpy(), outcome.lse.double().numpy()
    assert np.isfinite(o).all()
    empty = np.isneginf(lse_wanted)
    assert (np.isneginf(lse) == empty).all()
    assert (o.transpose(0, 2, 1, 3)[empty] == 0).all()
    np.testing.assert_allclose(lse[~empty], lse_wanted[~empty], rtol=0, atol=1e-4)
    error, peer = np.abs(o - o_wanted), _torch_error(given, o_wanted)
    floor = FLOOR[str(given.q.dtype).removeprefix("torch.")]
    used = 0.0
    for start in range(0, o.shape[1], TILE):
        tile = slice(start, start + TILE)
        ours = error[:, tile].max(axis=(1, 3))
        budget = 2 * peer[:, tile].max(axis=(1, 3)) + floor
        used = max(used, float((ours / budget).max()))
    assert used <= 1, f"error is {used:.2f} of its budget"
    return used
