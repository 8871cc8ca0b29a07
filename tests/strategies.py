"""Hypothesis strategies for the values maskplan takes and makes. They shrink towards 1 x 1."""

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import maskplan as mp
from tests.oracle import Pairs, plan_of_dense

BLOCK_SIDES = (1, 2, 3, 8, 16, 31, 32, 33, 64)
# What a careless producer leaves in a slot that no list reaches, and what FlashMLA pads with.
NASTY = (-(2**31), -2, 2**31 - 1, 2_147_480_000)


def lengths(*, low: int = 0, high: int = 70) -> st.SearchStrategy[int]:
    """Sequence lengths in tokens: small, on a word's edge, or ragged."""
    edges = [n for n in (0, 1, 2, 31, 32, 33, 63, 64, 65) if low <= n <= high]
    return st.one_of(st.integers(low, high), st.sampled_from(edges or [low]))


def block_sizes() -> st.SearchStrategy[tuple[int, int]]:
    """(bq, bk), words whole and not."""
    return st.tuples(st.sampled_from(BLOCK_SIDES), st.sampled_from(BLOCK_SIDES))


@st.composite
def geometries(draw: st.DrawFn, *, low: int = 0, high: int = 70) -> mp.Geometry:
    """Lengths from `low` to `high` tokens with any block size, larger than the lengths too."""
    return mp.Geometry(
        seqlen_q=draw(lengths(low=low, high=high)),
        seqlen_k=draw(lengths(low=low, high=high)),
        block_size=draw(block_sizes()),
    )


@st.composite
def head_shapes(draw: st.DrawFn) -> tuple[int, int]:
    """(batch, heads)."""
    return draw(st.integers(1, 2)), draw(st.integers(1, 3))


@st.composite
def dense_masks(draw: st.DrawFn, shape: tuple[int, ...]) -> Tensor:
    """bool of `shape`, whose last two axes are queries and keys.

    Noise at a drawn density, then rectangles set and cleared: empty and full rows, whole blocks.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.0, 1.0, 0.5, 0.02, 0.98]))
    mask = rng.random(shape) < density
    for _ in range(draw(st.integers(0, 3))):
        q0, q1 = sorted(rng.integers(0, shape[-2] + 1, 2))
        k0, k1 = sorted(rng.integers(0, shape[-1] + 1, 2))
        mask[..., q0:q1, k0:k1] = rng.random() < 0.5
    return torch.from_numpy(mask)


@st.composite
def plans(
    draw: st.DrawFn,
    *,
    geometry: mp.Geometry | None = None,
    heads: tuple[int, int] | None = None,
    canonical: bool = True,
) -> mp.Plan:
    """Plans of any mask, with shared and repeated patterns, made by loops (tests/oracle.py).

    With canonical=False the same meanings come with empty blocks listed, complete blocks as tiles,
    equal tiles repeated and patterns nobody uses.
    """
    geometry = draw(geometries()) if geometry is None else geometry
    batch, count = draw(head_shapes()) if heads is None else heads
    patterns = draw(st.integers(1, 3)) if geometry.seqlen_q else 1  # no rows: one empty pattern
    dense = draw(dense_masks((patterns, geometry.seqlen_q, geometry.seqlen_k)))
    ids = draw(
        st.lists(st.integers(0, patterns - 1), min_size=batch * count, max_size=batch * count)
    )
    pattern_id = torch.tensor(ids, dtype=torch.int32).view(batch, count)
    lists_all = not canonical and draw(st.booleans())
    plan = plan_of_dense(dense, pattern_id, geometry.block_size, lists_all=lists_all)
    return plan.canonical() if canonical else plan


@st.composite
def block_masks(draw: st.DrawFn) -> tuple[Tensor, mp.Geometry]:
    """(bool [batch, heads, M, N], its geometry), any strides, batch or heads broadcast at times."""
    geometry = draw(geometries())
    batch, heads = draw(head_shapes())
    shape = (batch, heads, geometry.num_q_blocks, geometry.num_k_blocks)
    own = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])), *shape[2:])
    return restrided(draw, draw(dense_masks(own))).expand(shape), geometry


def restrided(draw: st.DrawFn, tensor: Tensor) -> Tensor:
    """Equal values under other strides: as it is, transposed storage, or every second element."""
    layout = draw(st.sampled_from(["contiguous", "transposed", "sliced"]))
    if layout == "transposed":
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "sliced":
        wide = torch.zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]), dtype=tensor.dtype)
        wide[..., ::2] = tensor
        return wide[..., ::2]
    return tensor


@dataclass(frozen=True)
class TokenTopk:
    """Token-level lists of keys, as `from_topk` takes them.

    Attributes:
        indices: int [batch, heads, SQ, topk], -1 anywhere, duplicates, any strides.
        geometry: SQ, SK and block size.
        lengths: int [batch, heads, SQ] of lanes that count, or None; lanes beyond hold anything.
    """

    indices: Tensor
    geometry: mp.Geometry
    lengths: Tensor | None

    def pairs(self) -> Pairs:
        """Every (b, h, q, k) selected."""
        found: Pairs = set()
        batch, heads, rows, topk = self.indices.shape
        values = self.indices.tolist()
        for b in range(batch):
            for h in range(heads):
                for q in range(rows):
                    count = topk if self.lengths is None else int(self.lengths[b, h, q])
                    for key in values[b][h][q][:count]:
                        if key != -1:
                            found.add((b, h, q, key))
        return found


@st.composite
def token_topk(draw: st.DrawFn) -> TokenTopk:
    """Random keys, runs of whole blocks, or both, with holes, repeats and lengths."""
    geometry = draw(geometries(high=66))
    batch, heads = draw(head_shapes())
    topk = draw(st.integers(0, 70))
    own = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (*own, geometry.seqlen_q, topk)
    keys = np.full(shape, -1, dtype=np.int64)
    if geometry.seqlen_k:
        keys = rng.integers(0, geometry.seqlen_k, shape)
        if draw(st.booleans()):
            _write_runs(rng, keys, geometry)
        keys[rng.random(shape) < draw(st.sampled_from([0.0, 0.1, 1.0]))] = -1
    counts = None
    if draw(st.booleans()):
        counts = rng.integers(0, topk + 1, shape[:3])
        beyond = np.arange(topk) >= counts[..., None]
        keys[beyond] = rng.choice(NASTY, size=int(beyond.sum()))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    indices = restrided(draw, torch.from_numpy(keys).to(dtype))
    full = (batch, heads, *shape[2:])
    kept = None if counts is None else torch.from_numpy(counts).expand(full[:3])
    return TokenTopk(indices.expand(full), geometry, kept)


def _write_runs(rng: np.random.Generator, keys: np.ndarray, geometry: mp.Geometry) -> None:
    """Overwrite stretches of each list with whole blocks, aligned and ascending."""
    bk = geometry.block_size[1]
    for row in keys.reshape(-1, keys.shape[-1]) if keys.shape[-1] else []:
        at = int(rng.integers(0, 3))
        while at < len(row):
            start = int(rng.integers(0, geometry.num_k_blocks)) * bk
            run = np.arange(start, min(start + bk, geometry.seqlen_k))[: len(row) - at]
            row[at : at + len(run)] = run
            at += len(run) + int(rng.integers(0, 2))


@dataclass(frozen=True)
class BadTopk:
    """A top-k tensor with one wrong entry, and what the error has to name."""

    indices: Tensor
    geometry: mp.Geometry
    place: tuple[int, int, int, int]
    value: int


@st.composite
def bad_token_topk(draw: st.DrawFn) -> BadTopk:
    """Valid lists in which exactly one slot is out of range."""
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 40)), 5)
    geometry = mp.Geometry(
        seqlen_q=shape[2], seqlen_k=draw(st.integers(1, 70)), block_size=draw(block_sizes())
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    indices = torch.from_numpy(rng.integers(-1, geometry.seqlen_k, shape))
    place = tuple(draw(st.integers(0, size - 1)) for size in shape)
    value = draw(st.sampled_from([geometry.seqlen_k, *NASTY]))
    indices[place] = value
    return BadTopk(indices.to(torch.int32), geometry, place, value)


@dataclass(frozen=True)
class BadPlan:
    """A plan that breaks one invariant, and which."""

    plan: mp.Plan
    invariant: int


@st.composite
def bad_plans(draw: st.DrawFn) -> BadPlan:
    """Plans of at least one block, mask blocks among them, with one invariant of 1 to 6 broken."""
    fields = {
        "geometry": mp.Geometry(seqlen_q=4, seqlen_k=70, block_size=(2, 32)),
        "pattern_id": torch.tensor([[0]], dtype=torch.int32),
        "row_ptr": torch.tensor([0, 2, 4]),
        "col": torch.tensor([0, 2, 1, 2], dtype=torch.int32),
        "tile_id": torch.tensor([-1, 0, 0, -1], dtype=torch.int32),
        "tiles": torch.tensor([[[1], [2]]], dtype=torch.int32),
    }
    invariant = draw(st.integers(1, 6))
    broken = {
        1: ("pattern_id", [[draw(st.sampled_from([-1, 1]))]]),
        2: ("row_ptr", draw(st.sampled_from([[1, 2, 4], [0, 5, 4], [0, 2, 3]]))),
        3: ("col", draw(st.sampled_from([[0, 3, 1, 2], [-1, 2, 1, 2]]))),
        4: ("col", draw(st.sampled_from([[2, 2, 1, 2], [0, 2, 2, 1]]))),
        5: ("tile_id", [-1, draw(st.sampled_from([-2, 1])), 0, -1]),
        6: ("tiles", [[[1], [1 << draw(st.integers(6, 31)) if draw(st.booleans()) else 64]]]),
    }
    name, values = broken[invariant]
    words = torch.tensor(values, dtype=torch.int64)
    words = torch.where(words >= 2**31, words - 2**32, words)
    fields[name] = words.to(fields[name].dtype)
    return BadPlan(mp.Plan(**fields), invariant)
