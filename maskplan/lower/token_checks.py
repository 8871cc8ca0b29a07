"""What `TokenTiles` refuses, in one sentence each."""

from typing import NoReturn

import torch

from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import integer, number

POLICIES = ("uniform", "union", "representative")
FORMS = ("auto", "tokens", "blocks")
TILE_ROWS = (128, 256)
_WHERE = "token_tiles"


def lists_per_token(given: int, group: int, kv_heads: int | None) -> int:
    """Lists of a token in a tile: the group if there is one for each query head, else 1."""
    if kv_heads is None:
        return 1
    kv_heads = integer(kv_heads, "kv_heads", low=1)
    if given in (1, kv_heads):
        return 1
    if given == kv_heads * group:
        return group
    raise PlanError(
        sentence(
            what="lists have another number of heads",
            where=_WHERE,
            got=given,
            wanted=f"one of {sorted({1, kv_heads, kv_heads * group})} (1, KV heads, query heads)",
            remedy="pass group and kv_heads of the call, or check which axis is heads",
        )
    )


def check_options(policy: str, tile_rows: int, group: int, max_coverage: float) -> None:
    """Refuse options that are none, and a group that tiles cut."""
    if policy not in POLICIES:
        _refuse("unknown policy", repr(policy), " or ".join(map(repr, POLICIES)), "name one")
    if tile_rows not in TILE_ROWS:
        _refuse("tile not available", tile_rows, "tile_rows of 128 or 256", "pass one of these")
    if tile_rows % integer(group, "group", low=1):
        wanted = f"a divisor of {tile_rows} packed rows"
        _refuse("group does not divide the tile", f"group={group}", wanted, "do not pack: group=1")
    if not 0 <= number(max_coverage, "max_coverage") <= 1:
        _refuse("share out of range", max_coverage, "0 <= max_coverage <= 1", "pass a share")


def _refuse(what: str, got: object, wanted: str, remedy: str) -> NoReturn:
    raise PlanError(sentence(what=what, where=_WHERE, got=got, wanted=wanted, remedy=remedy))


def tile_name(m: int, b: int, h: int, per_tile: int, seqlen_q: int) -> str:
    """A tile's place in words."""
    last = min((m + 1) * per_tile, seqlen_q) - 1
    return f"tile {m} of batch {b}, head {h} (queries {m * per_tile} to {last})"


def raise_differ(m: int, b: int, h: int, per_tile: int, seqlen_q: int, got: str) -> NoReturn:
    """Refuse a tile whose queries differ.

    Raises:
        PlanError: always.
    """
    raise PlanError(
        sentence(
            what="queries of a tile select different keys",
            where=tile_name(m, b, h, per_tile, seqlen_q),
            got=got,
            wanted="one list for all of them, with policy='uniform'",
            remedy="pass policy='union' to keep each query exact by bits",
        )
    )


def raise_no_blocks(what: str, got: str, wanted: str) -> NoReturn:
    """Refuse form="blocks".

    Raises:
        PlanError: always.
    """
    _refuse(what, got, wanted, "pass form='tokens', or 'auto' to have it measured")


def raise_dropped(bits: int) -> NoReturn:
    """Refuse blocks that a device dropped because not all queries of their tile see them whole.

    Raises:
        PlanError: always.
    """
    raise PlanError(
        sentence(
            what="queries of a tile select different keys, or a block is not whole",
            where=f"the tiles' status word ({bits})",
            got="blocks that a query of their tile sees in part, which were dropped",
            wanted="whole blocks, the same for all queries of a tile, with policy='uniform'",
            remedy="call TokenTiles.from_topk with indices.cpu(), which names the tile, or pass "
            "policy='union'",
        )
    )


def raise_not_counted(where: str, device: torch.device) -> NoReturn:
    """Refuse to say how many pairs tiles have that a GPU made.

    Raises:
        PlanTypeError: always.
    """
    raise PlanTypeError(
        sentence(
            what="pairs are not counted",
            where=where,
            got=f"tiles made on {device}",
            wanted="exact tiles",
            remedy="use tiles.cpu(), which waits for the device",
        )
    )


def raise_no_target(device: torch.device) -> NoReturn:
    """Refuse to lower a device's blocks for nobody in particular.

    Raises:
        PlanTypeError: always.
    """
    raise PlanTypeError(
        sentence(
            what="blocks of a device are lowered for a target",
            where="TokenTiles.lower",
            got=f"tiles in the form of blocks on {device}",
            wanted="a table of tokens, or tiles on the CPU",
            remedy='pass the tiles to attention, or tiles.to_plan().lower("sm100", ...)',
        )
    )
