"""Runs the backward kernels in the emulator, and judges what they wrote."""

from dataclasses import dataclass

import numpy as np
import torch

from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.backward_host import BACKWARD_SOURCES, build_backward
from kernels_sm100.emulator import emulate
from kernels_sm100.launch import compile_kernel
from tests.kernels.backward.walks import TILE, Gradients, gradients, tables
from tests.kernels.forward.run import aligned

LOG2_E = float(np.log2(np.e))
POISON = float("nan")
TABLES = ("pattern_id", "row_ptr", "col", "tile_id", "write_order", "tiles", "order")
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # half a unit of a number near 1


@dataclass(frozen=True)
class Problem:
    """Inputs of one call, and the mask of each pattern, bool [PB, PH, SQ, SK]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    dlse: torch.Tensor
    masks: np.ndarray
    scale: float
    wanted: Gradients
    delta: np.ndarray


def problem(config, masks, *, batch=1, kv_heads=1, seed=0, spread=1.0):
    """Normal q, k, v, dO and dLSE, and the gradients in float64."""
    generator = torch.Generator().manual_seed(seed)
    seqlen_q, seqlen_k = masks.shape[2:]
    dtype = getattr(torch, config.dtype)
    heads = kv_heads * config.group
    shapes = [
        (batch, seqlen_q, heads, config.head_dim),
        (batch, seqlen_k, kv_heads, config.head_dim),
    ]
    q, k, v, do = (aligned(shapes[i], dtype) for i in (0, 1, 1, 0))
    for tensor in (q, k, v, do):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    q.mul_(spread)
    dlse = torch.randn((batch, heads, seqlen_q), generator=generator)
    scale = config.head_dim**-0.5
    arrays = [t.double().numpy() for t in (q, k, v, do, dlse)]
    wanted = gradients(*arrays, masks, scale)
    delta = np.einsum("bshd,bshd->bhs", wanted.o, arrays[3]) - arrays[4]
    return Problem(q, k, v, do, dlse, masks, scale, wanted, delta)


def padded_rows(values, fill, pack=1):
    """Float32 [B, H / G, M * 128], G rows a token, at an aligned address."""
    values = values.reshape(values.shape[0], -1, pack, values.shape[2]).swapaxes(2, 3)
    values = np.ascontiguousarray(values.reshape(*values.shape[:2], -1))
    batch, heads, seqlen = values.shape
    out = aligned((batch, heads, -(-seqlen // TILE) * TILE), torch.float32, fill)
    out[:, :, :seqlen] = torch.from_numpy(values)
    return out


def sums_of(heads, seqlen, given, config):
    """Float32 accumulators, zero."""
    shape = (given.q.shape[0], heads, -(-seqlen // TILE), config.head_dim // 4, TILE, 4)
    return aligned(shape, torch.float32, 0.0)


def unpacked(sums, seqlen, pack=1):
    """[B, H / G, T, D / 4, 128, 4], G rows a token, as [B, S, H, D] in float64."""
    batch, heads, tiles, fours, _, _ = sums.shape
    rows = sums.double().permute(0, 2, 4, 1, 3, 5).reshape(batch, tiles * TILE, heads, fours * 4)
    rows = rows[:, : seqlen * pack].reshape(batch, seqlen, pack, heads, fours * 4)
    return rows.transpose(2, 3).reshape(batch, seqlen, heads * pack, fours * 4).numpy()


@dataclass(frozen=True)
class Outcome:
    """Gradients as float64, the raw tensors, and the emulator's report."""

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    raw: tuple[torch.Tensor, ...]
    report: object


class BackwardKernel:
    """One compiled configuration."""

    def __init__(self, config: BackwardConfig, cache, *, build=build_backward, sources=()):
        self.config = config
        self.compiled = compile_kernel(
            build, config, sources=(*BACKWARD_SOURCES, *sources), cache=cache
        )

    def tables(self, given, **options):
        """The walk of the problem's masks."""
        options.setdefault("tokens", TILE // self.config.rows_per_token)
        if self.config.direction == "loop_k":
            return tables(given.masks, by="queries", owners=given.masks.shape[1], **options)
        owners = min(given.masks.shape[1], given.k.shape[2])
        return tables(
            given.masks,
            by="keys",
            parts=self.config.parts,
            owners=owners,
            spt=self.config.spt,
            **options,
        )

    def arguments(self, given: Problem, walk, ctas, bias=None, delta=None):
        """(arguments of the host program, outputs)."""
        log2 = np.where(np.isneginf(given.wanted.lse), -np.inf, -given.wanted.lse * LOG2_E)
        pack = self.config.rows_per_token
        bias = padded_rows(log2, -np.inf, pack) if bias is None else bias
        delta = padded_rows(given.delta, 0.0, pack) if delta is None else delta
        found = {}
        for name in TABLES:
            array = torch.from_numpy(getattr(walk, name))
            found[name] = aligned(array.shape, array.dtype)
            found[name].copy_(array)
        batch, seqlen_q, heads, _ = given.q.shape
        scales = (given.scale, given.scale * LOG2_E)
        if self.config.direction == "loop_q":
            rows = (heads // pack, seqlen_q * pack)
            outputs = (sums_of(*rows, given, self.config), *self.of_keys(given))
            turns = aligned((batch, *outputs[0].shape[1:3]), torch.int32, 0)
            inputs = (given.q, given.k, given.v, given.do, bias, delta, *outputs, turns)
            lists = [found[name] for name in TABLES]
            return (*inputs, *lists, *scales, ctas), outputs
        outputs = (aligned(given.q.shape, given.q.dtype, POISON), *self.of_keys(given))
        lists = [found[name] for name in TABLES if name != "write_order"]
        inputs = (given.q, given.k, given.v, given.do, bias, delta, *outputs)
        return (*inputs, *lists, bias.shape[2] // TILE, *scales, ctas), outputs

    def of_keys(self, given):
        """What dK and dV go to: sums, or poisoned tensors that are written."""
        if self.config.direction == "loop_k" or self.config.head_split > 1:
            seqlen_k, kv_heads = given.k.shape[1:3]
            return tuple(sums_of(kv_heads, seqlen_k, given, self.config) for _ in range(2))
        return tuple(aligned(t.shape, t.dtype, POISON) for t in (given.k, given.v))

    def launch(self, given, on_launch, *, walk=None, ctas=1, bias=None, delta=None):
        """Call the host code; returns the output tensors."""
        walk = self.tables(given) if walk is None else walk
        arguments, outputs = self.arguments(given, walk, ctas, bias, delta)
        self.compiled.host_program(*arguments, on_launch=on_launch)
        return outputs

    def run(
        self, given, *, walk=None, ctas=1, bias=None, delta=None, schedule="random_eager", seed=0,
        **options,
    ):  # fmt: skip
        """Emulate one call, races checked."""
        reports = []

        def launched(launch, memory):
            reports.append(emulate(launch, memory, schedule=schedule, seed=seed, **options))

        raw = self.launch(given, launched, walk=walk, ctas=ctas, bias=bias, delta=delta)
        assert len(reports) == 1
        return self.outcome(given, raw, reports[0])

    def outcome(self, given: Problem, raw, report):
        """Gradients of what a launch wrote."""
        dq, dk, dv = raw
        seqlen_k = given.k.shape[1]
        if self.config.direction == "loop_q":
            dq = unpacked(dq, given.q.shape[1], self.config.rows_per_token) * given.scale
        else:
            dq = dq.double().numpy()
        if dk.dtype == torch.float32:
            dk, dv = unpacked(dk, seqlen_k) * given.scale, unpacked(dv, seqlen_k)
        else:
            dk, dv = dk.double().numpy(), dv.double().numpy()
        return Outcome(dq, dk, dv, raw, report)


def judge(given: Problem, outcome: Outcome):
    """Largest part of the error budget that any (gradient, batch, head, tile) used; at most 1.

    P and dS are rounded to the dtype once, q, k and dO are exact, so an element of a product may be
    off by a unit of the dtype times the root of the sum of its squared terms; the budget is three
    such standard deviations, plus a unit of the tile's largest element. Rows that no pair touches
    are zero.
    """
    unit = UNIT[str(given.q.dtype).removeprefix("torch.")]
    used = 0.0
    spreads = _spreads(given)
    for name in ("dq", "dk", "dv"):
        got, wanted = getattr(outcome, name), getattr(given.wanted, name)
        assert np.isfinite(got).all(), name
        untouched = (spreads[name] == 0).all(-1)
        assert (got[untouched] == 0).all(), name
        for start in range(0, got.shape[1], TILE):
            tile = slice(start, start + TILE)
            error = np.abs(got - wanted)[:, tile].max(axis=(1, 3))
            size = np.abs(wanted)[:, tile].max(axis=(1, 3))
            spread = spreads[name][:, tile].max(axis=(1, 3))
            budget = unit * (3 * spread + size) + 1e-30
            used = max(used, float((error / budget).max()))
            norms = [np.linalg.norm(x[:, tile]) for x in (got, wanted)]
            assert norms[0] == norms[1] or abs(norms[0] / norms[1] - 1) < 2 * unit * 8, name
    assert used <= 1, f"error is {used:.2f} of its budget"
    return used


def _spreads(given):
    """Root of the sum of squared terms of every element, by gradient."""
    q, k, v, do = (t.double().numpy() for t in (given.q, given.k, given.v, given.do))
    group = q.shape[2] // k.shape[2]
    found = {n: np.zeros(x.shape) for n, x in (("dq", q), ("dk", k), ("dv", v))}
    for b, h in np.ndindex(q.shape[0], q.shape[2]):
        mask = given.masks[b % len(given.masks), h * given.masks.shape[1] // q.shape[2]]
        kv = h // group
        score = np.where(mask, q[b, :, h] @ k[b, :, kv].T * given.scale, -np.inf)
        lse = given.wanted.lse[b, h]
        p = np.where(mask, np.exp(score - np.where(np.isfinite(lse), lse, 0.0)[:, None]), 0.0)
        ds = given.scale * p * (do[b, :, h] @ v[b, :, kv].T - given.delta[b, h][:, None])
        found["dq"][b, :, h] = ds**2 @ k[b, :, kv] ** 2
        found["dk"][b, :, kv] += (ds**2).T @ q[b, :, h] ** 2
        found["dv"][b, :, kv] += (p**2).T @ do[b, :, h] ** 2
    return {name: np.sqrt(x) for name, x in found.items()}
