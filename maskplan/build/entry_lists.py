"""Listed blocks, one entry a block, from lists that others made: checked, merged, put in order."""

from typing import NamedTuple

import torch
from torch import Tensor

from maskplan.errors import PlanError, sentence

CONTENT_FULL = -1


class Entries(NamedTuple):
    """Blocks of many rows, flat.

    Attributes:
        line: int64 [entries], row (pattern, Q block) with Q block fastest; ascending.
        slot: int64 [entries], place in that row's list.
        block: int64 [entries], KV block.
        content: int64 [entries], -1 full, else a tile number.
    """

    line: Tensor
    slot: Tensor
    block: Tensor
    content: Tensor


class Names(NamedTuple):
    """What errors call a pair of lists, and how they place an entry."""

    counts: str
    blocks: str
    rows: int
    heads: int

    def place(self, line: int, slot: int | None = None) -> str:
        """The entry, or the row, as an index path."""
        pattern, row = divmod(line, max(self.rows, 1))
        b, h = divmod(pattern, self.heads)
        at = f"b={b}, h={h}, row={row}"
        return f"{self.counts}[{at}]" if slot is None else f"{self.blocks}[{at}, slot={slot}]"


def read_entries(counts: Tensor, blocks: Tensor, names: Names) -> Entries:
    """The first counts[line] blocks of each line; what lies beyond is not looked at.

    Args:
        counts: int [lines].
        blocks: int [lines, width].
        names: for errors.

    Raises:
        PlanError: if a count is negative or larger than the width.
    """
    width = blocks.shape[1]
    bad = ((counts < 0) | (counts > width)).nonzero()
    if len(bad):
        line = int(bad[0, 0])
        raise PlanError(
            sentence(
                what="count does not fit its list",
                where=names.place(line),
                got=int(counts[line]),
                wanted=f"0 <= count <= width = {width}",
                remedy=f"make {names.blocks} as wide as the longest list",
            )
        )
    lines, slots = (torch.arange(width, device="cpu") < counts[:, None]).nonzero(as_tuple=True)
    listed = blocks[lines, slots].long()
    return Entries(lines, slots, listed, torch.full_like(listed, CONTENT_FULL))


def check_blocks(entries: Entries, limit: int, names: Names, *, sort: bool) -> None:
    """Check that blocks are in range and, in each line, ascend strictly.

    With `sort` they may come in any order, still without repeats.

    Raises:
        PlanError: for the first entry that does not.
    """
    bad = ((entries.block < 0) | (entries.block >= limit)).nonzero()
    if len(bad):
        at = int(bad[0, 0])
        _fail(entries, at, names, "block out of range", f"0 <= block < {limit}", "list KV blocks")
    if sort:
        entries = in_order(entries)
    same_line = entries.line[1:] == entries.line[:-1]
    step = entries.block[1:] - entries.block[:-1]
    bad = (same_line & (step <= 0)).nonzero()
    if not len(bad):
        return
    at = int(bad[0, 0]) + 1
    before = int(entries.block[at - 1])
    if int(step[at - 1]) == 0:
        what, remedy = "block listed twice", "list each KV block once"
    else:
        what, remedy = "list is not sorted", "pass sort=True to accept any order"
    _fail(entries, at, names, what, f"more than {before}", remedy)


def _fail(entries: Entries, at: int, names: Names, what: str, wanted: str, remedy: str) -> None:
    raise PlanError(
        sentence(
            what=what,
            where=names.place(int(entries.line[at]), int(entries.slot[at])),
            got=int(entries.block[at]),
            wanted=wanted,
            remedy=remedy,
        )
    )


def in_order(entries: Entries) -> Entries:
    """The entries by line, then block; equal ones keep their order."""
    if not len(entries.line):
        return entries
    key = entries.line * (int(entries.block.max()) + 1) + entries.block
    order = torch.argsort(key, stable=True)
    return Entries(*(part[order] for part in entries))


def merged(full: Entries, mask: Entries, names: Names) -> Entries:
    """Full and mask entries in one list.

    Raises:
        PlanError: if a block is in both.
    """
    both = in_order(Entries(*(torch.cat(parts) for parts in zip(full, mask, strict=True))))
    again = (both.line[1:] == both.line[:-1]) & (both.block[1:] == both.block[:-1])
    bad = again.nonzero()
    if len(bad):
        at = int(bad[0, 0]) + 1
        raise PlanError(
            sentence(
                what="block is in both lists",
                where=names.place(int(both.line[at]), int(both.slot[at])),
                got=int(both.block[at]),
                wanted="a block listed as full, or as a mask block",
                remedy="leave it out of one of the lists",
            )
        )
    return both
