"""Walk tables from a dense mask, and gradients from their definition: code of the tests alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TILE = 128
FULL, SKIP = -1, -2


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What a backward kernel walks; `write_order` is LoopQ's."""

    pattern_id: NDArray[np.int32]
    row_ptr: NDArray[np.int64]
    col: NDArray[np.int32]
    tile_id: NDArray[np.int32]
    write_order: NDArray[np.int32]
    tiles: NDArray[np.int32]
    order: NDArray[np.int32]


def _kinds(mask, pool, all_bits, tokens):
    """Kind of every block of `tokens` x 128, [KV blocks, Q blocks]; bits are those of S^T."""
    seqlen_q, seqlen_k = mask.shape
    found = np.full((-(-seqlen_k // TILE), -(-seqlen_q // tokens)), SKIP, dtype=np.int32)
    for n, m in np.ndindex(*found.shape):
        block = mask[tokens * m : tokens * (m + 1), TILE * n : TILE * (n + 1)].T
        if block.all() and not all_bits:
            found[n, m] = FULL
        elif block.any():
            padded = np.zeros((TILE, -(-tokens // 32) * 32), dtype=bool)
            padded[: block.shape[0], : block.shape[1]] = block
            bits = np.packbits(padded, axis=1, bitorder="little").tobytes()
            found[n, m] = pool.setdefault(bits, len(pool))
    return found


def tables(masks, *, by, parts=1, owners=1, all_bits=False, spt=False, tokens=TILE):
    """Lists of every block of `masks` bool [PB, PH, SQ, SK] that keeps a pair.

    Args:
        masks: one pattern per (batch, head).
        by: "keys" for LoopQ's rows, "queries" for LoopK's.
        parts: Q tiles of an entry.
        owners: heads that work items are ordered for.
        all_bits: give bits to full blocks too.
        spt: turns descend in KV blocks.
        tokens: of a Q tile, 128 / G with PackGQA.
    """
    batches, heads, seqlen_q, seqlen_k = masks.shape
    row_ptr, col, ids, turns, pool = [0], [], [], [], dict[bytes, int]()
    for mask in masks.reshape(-1, seqlen_q, seqlen_k):
        kinds = _kinds(mask, pool, all_bits, tokens)
        visited = kinds != SKIP
        rank = np.cumsum(visited, axis=0) - 1
        if spt:
            rank = visited.sum(axis=0) - 1 - rank
        rank = np.where(visited, rank, -1)
        if by == "queries":
            kinds, rank = kinds.T, rank.T
        missing = -kinds.shape[1] % parts
        kinds = np.pad(kinds, ((0, 0), (0, missing)), constant_values=SKIP)
        rank = np.pad(rank, ((0, 0), (0, missing)), constant_values=-1)
        for row, turn in zip(kinds, rank, strict=True):
            for c in range(len(row) // parts):
                part = slice(parts * c, parts * (c + 1))
                if (row[part] != SKIP).any():
                    col.append(c)
                    ids.append(row[part])
                    turns.append(turn[part])
            row_ptr.append(len(col))
    rows = (len(row_ptr) - 1) // (batches * heads)
    work = np.diff(row_ptr).reshape(batches, owners, -1, rows).sum(2).reshape(-1)
    return Tables(
        pattern_id=np.arange(batches * heads, dtype=np.int32).reshape(batches, heads),
        row_ptr=np.array(row_ptr, dtype=np.int64),
        col=np.array(col, dtype=np.int32),
        tile_id=np.array(ids, dtype=np.int32).reshape(-1, parts),
        write_order=np.array(turns, dtype=np.int32).reshape(-1, parts),
        tiles=np.frombuffer(b"".join(pool), dtype=np.int32)
        .reshape(-1, TILE, -(-tokens // 32))
        .copy(),
        order=np.argsort(-work, kind="stable").astype(np.int32),
    )


@dataclass(frozen=True)
class Gradients:
    """Float64, and what the backward takes of the forward: O [B, SQ, HQ, D], LSE [B, HQ, SQ]."""

    dq: NDArray[np.float64]
    dk: NDArray[np.float64]
    dv: NDArray[np.float64]
    o: NDArray[np.float64]
    lse: NDArray[np.float64]


def gradients(q, k, v, do, dlse, masks, scale, *, o=None):
    """From the definition, head by head.

    `o` replaces O where dS takes it, as a kernel does that is given a rounded O.
    """
    batch, seqlen_q, heads, _ = q.shape
    group = heads // k.shape[2]
    dq, dk, dv, out = (np.zeros(x.shape) for x in (q, k, v, do))
    lse = np.full((batch, heads, seqlen_q), -np.inf)
    for b, h in np.ndindex(batch, heads):
        mask = masks[b % masks.shape[0], h * masks.shape[1] // heads]
        kv = h // group
        some = mask.any(1)
        score = np.where(mask, q[b, :, h] @ k[b, :, kv].T * scale, -np.inf)[some]
        top = score.max(1, initial=-np.inf)
        weight = np.exp(score - top[:, None])
        total = weight.sum(1)
        lse[b, h, some] = top + np.log(total)
        p = weight / total[:, None]
        out[b, some, h] = p @ v[b, :, kv]
        used = out[b, some, h] if o is None else o[b, some, h]
        g = do[b, some, h]
        delta = (used * g).sum(1) - dlse[b, h, some]
        ds = p * (g @ v[b, :, kv].T - delta[:, None])
        dq[b, some, h] = scale * ds @ k[b, :, kv]
        dk[b, :, kv] += scale * ds.T @ q[b, some, h]
        dv[b, :, kv] += p.T @ g
    return Gradients(dq, dk, dv, out, lse)
