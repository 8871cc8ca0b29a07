"""Token tiles for our SM100 kernels: which configuration gathers, and its tables.

The lists of a call (`GatheredLists`) become those that `kernels_sm100.walk` describes: chunks of
128 tokens, one entry each, with a bit tile where rows of a Q tile see different ones. Whole blocks
never come here: they were measured, and are a plan, which TMA loads block by block.

NOTE [Tables of tiles]: tables are padded to one width, a multiple of 128, so that their chunks are
the kernel's as they lie, and entries have room for all of them: nothing waits for a device to say
how many there are. So tiles made on a GPU are walked there without the host having seen them. Lists
of single tokens, which the CPU gathers where rows of a tile share little, are put together again to
tiles; that does wait, if somebody has moved them to a device.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from maskplan.attention.call import AttentionCall
from maskplan.attention.metadata import Metadata
from maskplan.lower.gathered import GatheredLists
from maskplan.lower.lowered import moved
from maskplan.lower.schedule import longest_first
from maskplan.lower.target import TILE_ROWS

if TYPE_CHECKING:
    from kernels_sm100.backward_config import BackwardConfig
    from kernels_sm100.config import ForwardConfig

CHUNK = 128  # tokens
_WORDS = CHUNK // 32
_FULL, _SKIP, _NONE = -1, -2, -1
_HEAD_DIMS = (64, 128)


def refused(asked: Metadata) -> str | None:
    """Why no kernel gathers the tokens of a call; None if one does."""
    dims = (asked.head_dim, asked.head_dim_v)
    if not set(dims) <= set(_HEAD_DIMS):
        return f"its kernels gather rows of head dims {_HEAD_DIMS}, not {dims}: pad q, k and v"
    if asked.differentiable and (asked.deterministic or asked.backward == "loop_q"):
        wanted = "equal bits are" if asked.deterministic else "loop_q is"
        return (
            "its backward of token tiles is loop_k, which adds dK and dV in any order, and "
            f"{wanted} wanted: pass tiles.to_plan()"
        )
    packed = asked.lowered_for.packed
    if packed is not None and TILE_ROWS % packed:
        return f"its Q tiles of {TILE_ROWS} rows cut packed groups of {packed}: do not pack"
    return None


def lists_of(call: AttentionCall) -> GatheredLists:
    """The lists of a call, for each CTA of a kernel: see NOTE [Tables of tiles]."""
    lists = call.lowered.gathered
    assert lists is not None, "asked of calls that gather"
    return lists if lists.table else _of_tiles(lists, call.lowered.seqlen_k)


def forward_config(call: AttentionCall) -> "ForwardConfig":
    """What the forward kernel of a call is compiled for."""
    from kernels_sm100.config import ForwardConfig
    from kernels_sm100.modes import Direction, Launch, derive_modes

    lists = lists_of(call)
    q_tiles = lists.tokens * lists.group // TILE_ROWS
    launch = Launch(direction=Direction.FORWARD, gathered=True, group=lists.group)
    return ForwardConfig(
        dtype=str(call.q.dtype).removeprefix("torch."),
        head_dim=int(call.q.shape[3]),
        head_dim_v=int(call.v.shape[3]),
        group=call.group,
        pack_gqa=lists.group > 1,
        q_tiles=q_tiles,
        parts=q_tiles,
        inner_load=derive_modes(launch).inner_load,
    )


def backward_config(call: AttentionCall, head_dim: int) -> "BackwardConfig":
    """What the backward kernel of a call is compiled for."""
    from kernels_sm100.backward_config import BackwardConfig
    from kernels_sm100.modes import Direction, Launch, derive_modes

    lists = lists_of(call)
    modes = derive_modes(Launch(direction=Direction.LOOP_K, gathered=True, group=lists.group))
    assert modes.inner_store is not None, "LoopK adds dK and dV"
    return BackwardConfig(
        direction="loop_k",
        dtype=str(call.q.dtype).removeprefix("torch."),
        head_dim=head_dim,
        group=call.group,
        pack_gqa=lists.group > 1,
        inner_load=modes.inner_load,
        inner_store=modes.inner_store,
    )


def tables(call: AttentionCall) -> dict[str, Tensor]:
    """The tables of the forward's walk, by their names in `kernels_sm100.forward_host`."""
    lists = lists_of(call)
    keys = _keys_of_chunks(lists)
    tile_id, tiles = _bits(lists, keys)
    line = torch.arange(len(keys), device=keys.device)
    return _walk(call, lists, line, keys, tile_id, tiles)


def backward_tables(call: AttentionCall) -> dict[str, Tensor]:
    """The tables of LoopK's walk, by their names in `kernels_sm100.backward_shapes`.

    A row is a Q tile of 128 rows; the Q tiles of a list share its chunks, which the table holds
    once, and a tile that sees none of a chunk skips it.
    """
    lists = lists_of(call)
    keys = _keys_of_chunks(lists)
    tile_id, tiles = _bits(lists, keys)
    (lines, slots), parts = keys.shape, tile_id.shape[1]
    rows = -(-lists.seqlen_q * lists.group // TILE_ROWS)
    row = torch.arange(lines // lists.tiles * rows, device=keys.device)
    line = row // rows * lists.tiles + row % rows // parts
    part = (row % rows % parts)[:, None, None].expand(-1, slots, 1)
    tile_id = tile_id.view(lines, slots, parts)[line].gather(2, part)
    return _walk(call, lists, line, keys, tile_id.reshape(-1, 1), _turned(tiles))


def _keys_of_chunks(lists: GatheredLists) -> Tensor:
    """Tokens of each chunk, int64 [lines, chunks of a line]."""
    lines = len(lists.count)
    slots = len(lists.keys) // lines // CHUNK
    assert len(lists.keys) == lines * slots * CHUNK, "a table"
    number = torch.arange(slots, device=lists.count.device)
    return (lists.count.long()[:, None] - number * CHUNK).clamp(0, CHUNK)


def _walk(
    call: AttentionCall, lists: GatheredLists, line: Tensor, keys: Tensor, tile_id: Tensor,
    tiles: Tensor,
) -> dict[str, Tensor]:  # fmt: skip
    """Tables of rows that walk the chunks of lists.

    Args:
        call: of attention.
        lists: of tiles.
        line: int64 [rows], which list a row walks.
        keys: int64 [lines, slots], tokens of each chunk.
        tile_id: int64 [rows * slots, parts], what a chunk means to each Q tile of a row.
        tiles: bit tiles.
    """
    pattern_id = call.lowered.pattern_id.contiguous()
    slots, patterns = keys.shape[1], len(keys) // lists.tiles
    number = torch.arange(slots, device=keys.device)
    keys = keys[line]
    chunks = (keys > 0).sum(1)
    row_ptr = torch.nn.functional.pad(chunks.cumsum(0), (1, 0))
    room = len(line) * slots
    place = torch.where(keys > 0, row_ptr[:-1, None] + number, room).reshape(-1)

    def listed(value: Tensor) -> Tensor:
        """`value` of each chunk, by entry; what nobody lists goes to a last one, cut off."""
        made = value.new_zeros(room + 1, *value.shape[1:])
        made[place] = value
        return made[:room].to(torch.int32)

    work = chunks.view(patterns, -1)[pattern_id.long()].reshape(-1)
    return {
        "pattern_id": pattern_id,
        "row_ptr": row_ptr,
        "col": listed((line[:, None] * slots + number).reshape(-1)),
        "tile_id": listed(tile_id),
        "tiles": tiles,
        "order": longest_first(work),
        "tokens": lists.keys.view(-1, CHUNK),
        "keys": listed(keys.reshape(-1)),
    }


def steps(call: AttentionCall) -> int:
    """Products of a Q tile and a chunk that a call takes at most, plus its Q tiles."""
    lists, pattern = lists_of(call), call.lowered.pattern_id.long()
    chunks = ((lists.count.long() + CHUNK - 1) // CHUNK).view(-1, lists.tiles).sum(1)
    items = int(chunks[pattern].sum()) + pattern.numel() * lists.tiles
    repeats = call.batch * call.heads // lists.group // pattern.numel()
    return items * repeats * (lists.tokens * lists.group // TILE_ROWS)


def _bits(lists: GatheredLists, keys: Tensor) -> tuple[Tensor, Tensor]:
    """(what each chunk means to each Q tile, [chunks, Q tiles]; bit tiles int32 [T, 128, 4]).

    Args:
        lists: of tiles.
        keys: int64 [lines, chunks of a line]: tokens of each chunk.
    """
    rows, device = lists.tokens * lists.group, keys.device
    (lines, slots), parts = keys.shape, rows // TILE_ROWS
    tile = torch.arange(lines, device=device) % lists.tiles
    row = torch.arange(rows, device=device) + tile[:, None] * rows
    inside = (row < lists.seqlen_q * lists.group).view(lines, 1, parts, TILE_ROWS)
    if lists.bits is None:
        ids = torch.where(inside.any(3), _FULL, _SKIP).expand(lines, slots, parts)
        return ids.reshape(-1, parts), lists.keys.new_empty(0, TILE_ROWS, _WORDS)
    words = lists.bits.repeat_interleave(rows // lists.bits.shape[1], dim=1)
    words = words.view(lines, parts, TILE_ROWS, slots, _WORDS).permute(0, 3, 1, 2, 4)
    left = keys[..., None] - 32 * torch.arange(_WORDS, device=device)
    asked = ((1 << left.clamp(0, 32)) - 1)[:, :, None, None]
    wanted = words.long() & asked
    full = ((wanted == asked).all(4) | ~inside).all(3)
    none = ((wanted == 0).all(4) | ~inside).all(3)
    number = torch.arange(lines * slots * parts, device=device).view(full.shape)
    ids = torch.where(none, _SKIP, torch.where(full, _FULL, number))
    return ids.view(-1, parts), words.reshape(-1, TILE_ROWS, _WORDS)


def _turned(tiles: Tensor) -> Tensor:
    """Bit tiles int32 [T, 128, 4] with rows and columns changed over, on their device."""
    bit = torch.arange(32, device=tiles.device)
    made = [tiles.new_empty(0, TILE_ROWS, _WORDS)]
    for some in torch.split(tiles, 256):  # of which each takes 128 KiB here
        kept = (some[..., None] >> bit & 1).view(-1, TILE_ROWS, CHUNK).transpose(1, 2)
        words = (kept.reshape(-1, CHUNK, _WORDS, 32).long() << bit).sum(3)
        made.append(torch.where(words < 1 << 31, words, words - (1 << 32)).to(torch.int32))
    return torch.cat(made)


def _of_tiles(lists: GatheredLists, seqlen_k: int) -> GatheredLists:
    """Lists of single tokens as lists of Q tiles: unions, with a row of bits for each token."""
    pair = 2 if lists.seqlen_q * lists.group > TILE_ROWS else 1
    tokens = pair * TILE_ROWS // lists.group
    tiles = -(-lists.seqlen_q // tokens)
    device, lists = lists.count.device, moved(lists, torch.device("cpu"))
    count = lists.count.numpy().astype(np.int64)
    owner = np.repeat(np.arange(len(count)), count)  # which list of a token each key is in
    slot = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    pattern, token = np.divmod(owner, lists.seqlen_q)
    line = pattern * tiles + token // tokens
    code = line * seqlen_k + lists.keys.numpy()[lists.start.numpy()[owner] + slot]
    union, place = np.unique(code, return_inverse=True)
    lines = len(count) // lists.seqlen_q * tiles
    owner = union // seqlen_k
    counts = np.bincount(owner, minlength=lines)
    first = np.cumsum(counts) - counts
    width = max(-(-int(counts.max()) // CHUNK), 1) * CHUNK
    table = np.full((lines, width), _NONE, dtype=np.int32)
    table[owner, np.arange(len(union)) - first[owner]] = union % seqlen_k
    kept = np.zeros((lines, tokens, width), dtype=np.bool_)
    kept[line, token % tokens, place - first[line]] = True
    bits = np.packbits(kept, axis=2, bitorder="little").view("<i4").astype(np.int32, copy=False)
    made = replace(
        lists,
        start=torch.arange(lines, device="cpu") * width,
        count=torch.from_numpy(counts.astype(np.int32)),
        keys=torch.from_numpy(table.reshape(-1)),
        bits=torch.from_numpy(bits),
        tokens=tokens,
        lists_per_token=1,
        table=True,
    )
    on_device: GatheredLists = moved(made, device)
    return on_device
