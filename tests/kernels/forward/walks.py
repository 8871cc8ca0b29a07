"""Walk tables from a dense mask, and attention from its definition: code of the tests alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TILE = 128
FULL, SKIP = -1, -2


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What the kernel walks, and sizes that go with it."""

    pattern_id: NDArray[np.int32]
    row_ptr: NDArray[np.int64]
    col: NDArray[np.int32]
    tile_id: NDArray[np.int32]
    tiles: NDArray[np.int32]
    order: NDArray[np.int32]
    rows: int


def _block(mask: NDArray[np.bool_], q: int, k: int, tokens: int) -> NDArray[np.bool_]:
    return mask[q * tokens : (q + 1) * tokens, k * TILE : (k + 1) * TILE]


def _bits(block: NDArray[np.bool_], tokens: int) -> bytes:
    padded = np.zeros((tokens, TILE), dtype=bool)
    padded[: block.shape[0], : block.shape[1]] = block
    return np.packbits(padded, axis=1, bitorder="little").tobytes()


def tables(
    masks: NDArray[np.bool_],
    *,
    parts: int,
    tokens: int = TILE,
    all_bits: bool = False,
    reverse: bool = False,
) -> Tables:
    """Lists of every block of `masks` bool [PB, PH, SQ, SK] that keeps a pair.

    Args:
        masks: one pattern per (batch, head).
        parts: Q tiles of an entry.
        tokens: query tokens of a Q tile.
        all_bits: give bits to full blocks too.
        reverse: descending lists.
    """
    batches, heads, seqlen_q, seqlen_k = masks.shape
    rows = -(-seqlen_q // (tokens * parts))
    cols = -(-seqlen_k // TILE)
    row_ptr, col, ids, pool = [0], [], [], dict[bytes, int]()
    for mask in masks.reshape(-1, seqlen_q, seqlen_k):
        for row in range(rows):
            listed = []
            for k in range(cols):
                kinds = []
                for part in range(parts):
                    block = _block(mask, row * parts + part, k, tokens)
                    if not block.any():
                        kinds.append(SKIP)
                    elif block.all() and not all_bits:
                        kinds.append(FULL)
                    else:
                        kinds.append(pool.setdefault(_bits(block, tokens), len(pool)))
                if any(kind != SKIP for kind in kinds):
                    listed.append((k, kinds))
            for k, kinds in listed[::-1] if reverse else listed:
                col.append(k)
                ids.append(kinds)
            row_ptr.append(len(col))
    work = np.diff(row_ptr)
    tiles = np.frombuffer(b"".join(pool), dtype=np.int32).reshape(-1, tokens, TILE // 32)
    return Tables(
        pattern_id=np.arange(batches * heads, dtype=np.int32).reshape(batches, heads),
        row_ptr=np.array(row_ptr, dtype=np.int64),
        col=np.array(col, dtype=np.int32),
        tile_id=np.array(ids, dtype=np.int32).reshape(-1, parts),
        tiles=tiles.copy(),
        order=np.argsort(-work, kind="stable").astype(np.int32),
        rows=rows,
    )


def attention(
    q: NDArray[np.float64],
    k: NDArray[np.float64],
    v: NDArray[np.float64],
    masks: NDArray[np.bool_],
    scale: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(O [B, SQ, HQ, DV], LSE [B, HQ, SQ]) in float64; 0 and -inf where no key is kept."""
    batch, seqlen_q, heads, _ = q.shape
    group = heads // k.shape[2]
    out = np.zeros((batch, seqlen_q, heads, v.shape[3]))
    lse = np.full((batch, heads, seqlen_q), -np.inf)
    for b in range(batch):
        for h in range(heads):
            mask = masks[b % masks.shape[0], h * masks.shape[1] // heads]
            score = np.where(mask, q[b, :, h] @ k[b, :, h // group].T * scale, -np.inf)
            top = score.max(1, initial=-np.inf)
            some = np.isfinite(top)
            weight = np.exp(score[some] - top[some, None])
            total = weight.sum(1)
            out[b, some, h] = weight @ v[b, :, h // group] / total[:, None]
            lse[b, h, some] = top[some] + np.log(total)
    return out, lse
