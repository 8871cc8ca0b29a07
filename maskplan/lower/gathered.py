"""`GatheredLists`: the key tokens that each tile of queries reads, where they are gathered."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from maskplan.lower.contiguity import Array, Contiguity, arrays_of, contiguity, shape_of
from maskplan.lower.packing import register
from maskplan.lower.token_tiles import TokenTiles
from maskplan.plan import Plan
from maskplan.threads import run_ranges


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatheredLists:
    """Lists of key tokens by tile of query tokens. A frozen pytree of tensors.

    A list number comes from `pattern_id` of the `LoweredPlan` that holds this.

    Attributes:
        start: int64 [lists * tiles]: where the keys of (list, tile), tile fastest, begin in `keys`.
        count: int32 [lists * tiles]: how many they are.
        keys: int32, flat: key tokens, ascending in a tile.
        bits: int32 [lists * tiles, tokens * lists_per_token, words]: bit i of word w of a row is
            whether it sees entry 32 * w + i. None where every row of a tile sees every entry.
        seqlen_q: SQ, in tokens.
        tokens: query tokens of a tile.
        lists_per_token: rows of bits of a token: 1, or one for each head of a group.
        group: query heads of a KV head that it was made for, or 1 for any.
        table: whether `keys` is a table of lists of one length, a multiple of 128, filled with -1;
            else lists lie one behind another.
        status: int32 [1] of tiles made on a GPU, as there; moving to the CPU reads it. Else None.
    """

    start: Tensor
    count: Tensor
    keys: Tensor
    bits: Tensor | None
    seqlen_q: int
    tokens: int
    lists_per_token: int = 1
    group: int = 1
    table: bool = False
    status: Tensor | None = None

    @property
    def tiles(self) -> int:
        """Tiles of a list."""
        return -(-self.seqlen_q // self.tokens)

    @property
    def form(self) -> str:
        """How keys are read: "tokens", a list a token, or "tiles", a list a tile of several."""
        return "tokens" if self.tokens == 1 else "tiles"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """How the CPU reads a lowered plan's keys: in blocks, or by lists that are flat tensors.

    NOTE [Open readings]: what is a number or None in `GatheredLists` would be a constant of a
    compiled region, which would then be compiled again for a plan that is read in another form.
    Here all of it lies in tensors, of two elements at least, since 0 and 1 are constants too.

    Attributes:
        layout: int64 [6]: query tokens of a tile, or 0 for blocks; rows of bits of a tile, or 0 for
            none; words of a row; then the true lengths of `start` and `count`, of `keys` and of
            `words`.
        start: as in `GatheredLists`, filled up.
        count: likewise.
        keys: likewise.
        words: its bits, flat, likewise.
    """

    layout: Tensor
    start: Tensor
    count: Tensor
    keys: Tensor
    words: Tensor

    @classmethod
    def of(cls, lists: GatheredLists | None) -> "Reading":
        """By `lists`, or in blocks."""
        if lists is None:
            none = torch.empty(0, dtype=torch.int32, device="cpu")
            tensors, sizes = [none.long(), none, none, none], [0, 0, 0]
        else:
            bits = lists.keys[:0] if lists.bits is None else lists.bits
            tensors = [lists.start, lists.count, lists.keys, bits.reshape(-1)]
            sizes = [lists.tokens, *((0, 0) if lists.bits is None else bits.shape[1:])]
        lengths = [len(tensor) for tensor in tensors[1:]]
        start, count, keys, words = (_at_least_two(tensor) for tensor in tensors)
        layout = torch.tensor([*sizes, *lengths], dtype=torch.int64, device="cpu")
        return cls(layout=layout, start=start, count=count, keys=keys, words=words)

    def lists(self, seqlen_q: int) -> GatheredLists | None:
        """What it was made of."""
        tokens, rows, words, lines, keys, bits = self.layout.tolist()
        if tokens == 0:
            return None
        return GatheredLists(
            start=self.start[:lines],
            count=self.count[:lines],
            keys=self.keys[:keys],
            bits=self.words[:bits].view(lines, rows, words) if rows else None,
            seqlen_q=seqlen_q,
            tokens=tokens,
        )


def reading_of(plan: Plan, pack: int) -> Reading | None:
    """How the CPU is to read a plan's keys, as its bits say; None of a plan that is elsewhere.

    Args:
        plan: any.
        pack: query heads that read a list together.
    """
    if plan.device.type != "cpu":
        return None
    form = contiguity(plan).form(pack)
    return Reading.of(None if form == "blocks" else gathered(plan, form))


def _at_least_two(tensor: Tensor) -> Tensor:
    """A flat tensor, filled up with zeros to two elements."""
    missing = 2 - len(tensor)
    return tensor if missing <= 0 else torch.cat([tensor, tensor.new_zeros(missing)])


def gathered(plan: Plan, form: str) -> GatheredLists:
    """The keys of a plan, read by "tiles" or "tokens"; lists are its patterns.

    Args:
        plan: exact, or a device plan on the CPU.
        form: from `Contiguity.form`.
    """
    return _by_token(plan) if form == "tokens" else _by_tile(plan)


def _by_token(plan: Plan) -> GatheredLists:
    """A list for each query token, with no key that it does not select."""
    from maskplan.lower import gathered_kernel as kernels

    arrays, shape, lines = arrays_of(plan), shape_of(plan), len(plan.row_ptr) - 1
    counts = np.zeros((plan.num_patterns, plan.seqlen_q), dtype=np.int32)
    run_ranges(lambda a, b: kernels.count_by_token(arrays, shape, a, b, counts), lines)
    starts, keys = _room(counts)
    run_ranges(lambda a, b: kernels.fill_by_token(arrays, shape, a, b, starts, keys), lines)
    return _lists(starts, counts, keys, None, plan.seqlen_q, 1)


def _by_tile(plan: Plan) -> GatheredLists:
    """A list for each Q block: the union of its queries' keys, with bits where they differ."""
    from maskplan.lower import gathered_kernel as kernels

    arrays, shape, lines = arrays_of(plan), shape_of(plan), len(plan.row_ptr) - 1
    counts = np.zeros(lines, dtype=np.int32)
    run_ranges(lambda a, b: kernels.count_by_block(arrays, shape, a, b, counts), lines)
    starts, keys = _room(counts)
    apart = plan.tile_id is not None
    words = -(-int(counts.max(initial=0)) // 32)
    bits = np.zeros((lines if apart else 0, plan.block_size[0], words), dtype=np.int32)
    run_ranges(lambda a, b: kernels.fill_by_block(arrays, shape, a, b, starts, keys, bits), lines)
    return _lists(starts, counts, keys, bits if apart else None, plan.seqlen_q, plan.block_size[0])


def of_tiles(tiles: TokenTiles) -> tuple[Tensor, GatheredLists]:
    """(list of each (batch, head) int32 [batch, heads], lists) of token tiles in form "tokens".

    The tables are taken as they are, on whichever device they lie, and nothing waits for it. On the
    CPU each row has a list of its own where rows see little of their tile's.
    """
    table = _own(tiles.tile_token_indices)
    batch, heads, number, width = table.shape
    lists, group = tiles.lists_per_token, tiles.rows_per_token
    ids = torch.arange(batch * heads, dtype=torch.int32, device=table.device).view(batch, heads)
    ids = ids.expand(tiles.batch, tiles.heads)
    bits = None
    if tiles.row_bits is not None:
        bits = _own(tiles.row_bits)[:, :, :, :: group // lists]
        bits = bits.reshape(batch * heads, number, -1, width // 32)
        if _read_by_row(tiles):
            head = torch.arange(lists, dtype=torch.int32, device="cpu")
            ids = (ids[..., None] * lists + head).flatten(1)
            rows = _of_rows(table.flatten(0, 1).numpy(), bits.numpy(), tiles)
            return ids.contiguous(), replace(rows, group=group if lists == 1 else 1)
        bits = bits.flatten(0, 1).contiguous()
    start = torch.arange(batch * heads * number, dtype=torch.int64, device=table.device) * width
    return ids.contiguous(), GatheredLists(
        start=start,
        count=_own(tiles.valid_counts).reshape(-1).contiguous(),
        keys=table.reshape(-1).contiguous(),
        bits=bits,
        seqlen_q=tiles.seqlen_q,
        tokens=tiles.tile_tokens,
        lists_per_token=lists,
        group=group,
        table=True,
        status=tiles.status,
    )


def _read_by_row(tiles: TokenTiles) -> bool:
    """Whether rows see so little of their tile's list that the CPU does better by one a row."""
    if tiles.device.type != "cpu" or tiles.status is not None:
        return False
    seen = Contiguity(
        blocks=tiles.visited_pairs, tiles=tiles.visited_pairs, tokens=tiles.kept_pairs,
        block_size=(tiles.tile_tokens, 1),
    )  # fmt: skip
    return seen.form(tiles.rows_per_token // tiles.lists_per_token) == "tokens"


def _of_rows(table: Array, bits: Array, tiles: TokenTiles) -> GatheredLists:
    """A list for each row of bits, of the keys of `table` [lists, tiles, L] that it has."""
    from maskplan.lower import gathered_kernel as kernels

    lists, tokens = tiles.lists_per_token, tiles.tile_tokens
    shape = (tiles.seqlen_q, table.shape[1])
    number = table.shape[0] * table.shape[1]
    counts = np.zeros((table.shape[0] * lists, tiles.seqlen_q), dtype=np.int32)
    run_ranges(lambda a, b: kernels.count_of_rows(bits, tokens, lists, shape, a, b, counts), number)
    starts, keys = _room(counts)
    run_ranges(
        lambda a, b: kernels.fill_of_rows(bits, table, tokens, lists, shape, a, b, starts, keys),
        number,
    )
    return _lists(starts, counts, keys, None, tiles.seqlen_q, 1)


def _own(tensor: Tensor | None) -> Tensor:
    """[batch, heads, ...] with 1 for an axis that was expanded."""
    assert tensor is not None, "tables of form tokens"
    tensor = tensor[:1] if tensor.stride(0) == 0 else tensor
    return tensor[:, :1] if tensor.stride(1) == 0 else tensor


def _room(counts: Array) -> tuple[Array, Array]:
    """(where each list begins, room for all of them one after another)."""
    ends = np.cumsum(counts, dtype=np.int64)
    starts = (ends - counts.reshape(-1)).reshape(counts.shape)
    return starts, np.empty(int(ends[-1]) if ends.size else 0, dtype=np.int32)


def _lists(
    starts: Array, counts: Array, keys: Array, bits: Array | None, seqlen_q: int, tokens: int
) -> GatheredLists:
    return GatheredLists(
        start=torch.from_numpy(starts.reshape(-1)),
        count=torch.from_numpy(counts.reshape(-1)),
        keys=torch.from_numpy(keys),
        bits=None if bits is None else torch.from_numpy(bits),
        seqlen_q=seqlen_q,
        tokens=tokens,
    )


register(GatheredLists, "maskplan.lower.GatheredLists")
register(Reading, "maskplan.lower.Reading")
