"""Walk tables of gathered lists from a dense mask: code of the tests alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.kernels.forward.walks import FULL, SKIP, TILE, Tables

NONE = -1


@dataclass(frozen=True, kw_only=True)
class TokenTables(Tables):
    """`Tables` whose entries are chunks of tokens."""

    tokens: NDArray[np.int32]
    keys: NDArray[np.int32]


def packed_rows(masks, config):
    """Bool [patterns, packed rows, SK] of [PB, PH, SQ, SK], and how many patterns a batch has.

    With PackGQA, PH is 1, the KV heads, or the query heads, of which `group` share a pattern.
    """
    batches, heads, seqlen_q, seqlen_k = masks.shape
    pack = config.rows_per_token
    each = pack if pack > 1 and heads % pack == 0 and heads > 1 else 1
    by_head = masks.reshape(batches, heads // each, each, seqlen_q, seqlen_k)
    by_row = np.repeat(by_head, pack // each, axis=2).swapaxes(2, 3)
    return by_row.reshape(-1, seqlen_q * pack, seqlen_k), heads // each


def token_tables(masks, config, *, seed=None, all_bits=False, reverse=False):
    """Lists of the tokens that any row of a tile keeps, with bits where rows differ.

    Args:
        masks: bool [PB, PH, SQ, SK].
        config: of the kernel.
        seed: shuffle each list, and the chunks in the table, by it; ascending if None.
        all_bits: give bits to full chunks too.
        reverse: visit the chunks of a list from its end.
    """
    patterns, heads = packed_rows(masks, config)
    tile, parts = config.cta_rows, config.q_tiles
    rows = -(-patterns.shape[1] // tile)
    rng = np.random.default_rng(0 if seed is None else seed)
    row_ptr, ids, keys, chunks, bits = [0], [], [], [], []
    for mask in patterns:
        for row in range(rows):
            part_masks = [
                mask[row * tile + TILE * h : row * tile + TILE * (h + 1)] for h in range(parts)
            ]
            listed = np.flatnonzero(mask[row * tile : (row + 1) * tile].any(0))
            if seed is not None:
                listed = rng.permutation(listed)
            starts = range(0, len(listed), TILE)
            for start in reversed(starts) if reverse else starts:
                chunk = listed[start : start + TILE]
                kinds = []
                for part in part_masks:
                    kept = part[:, chunk]
                    if not kept.any():
                        kinds.append(SKIP)
                    elif kept.all() and not all_bits:
                        kinds.append(FULL)
                    else:
                        kinds.append(len(bits))
                        padded = np.zeros((TILE, TILE), dtype=bool)
                        padded[: kept.shape[0], : kept.shape[1]] = kept
                        bits.append(np.packbits(padded, axis=1, bitorder="little").tobytes())
                ids.append(kinds)
                keys.append(len(chunk))
                chunks.append(np.pad(chunk, (0, TILE - len(chunk)), constant_values=NONE))
            row_ptr.append(len(keys))
    order = np.arange(len(chunks)) if seed is None else rng.permutation(len(chunks))
    table = np.full((len(chunks), TILE), NONE, dtype=np.int32)
    for place, chunk in zip(order, chunks, strict=True):
        table[place] = chunk
    words = np.frombuffer(b"".join(bits), dtype=np.int32).reshape(-1, TILE, TILE // 32)
    count = len(patterns) // heads
    return TokenTables(
        pattern_id=np.arange(len(patterns), dtype=np.int32).reshape(count, heads),
        row_ptr=np.array(row_ptr, dtype=np.int64),
        col=order.astype(np.int32),
        tile_id=np.array(ids, dtype=np.int32).reshape(-1, parts),
        tiles=words.copy(),
        order=np.argsort(-np.diff(row_ptr), kind="stable").astype(np.int32),
        rows=rows,
        tokens=table,
        keys=np.array(keys, dtype=np.int32),
    )
