"""What lanes of a warp exchange: shuffles, votes, reductions, matches."""

import numpy as np

from kernels_sm100.emulator.lanes.types import Lanes, Mask

LANE = np.arange(32)
ONLY = [np.equal(LANE, lane) for lane in range(32)]
EVERY = np.ones(32, dtype=np.bool_)
REDUCE = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def all_lanes(mask: Mask | None) -> Mask:
    """The mask, or all lanes for None."""
    return EVERY if mask is None else mask


def shuffle(mode: str, value: Lanes, lane: Lanes, clamp: Lanes) -> tuple[Lanes, Mask]:
    """`shfl.sync`: each lane's value from another lane, and whether that lane is in range."""
    by = lane.astype(np.int64) & 31
    limit = clamp.astype(np.int64) & 31
    segment = (clamp.astype(np.int64) >> 8) & 31
    low = LANE & segment
    high = low | (limit & ~segment)
    if mode == "idx":
        source = low | (by & ~segment)
        inside = source <= high
    elif mode == "bfly":
        source = LANE ^ by
        inside = source <= high
    elif mode == "down":
        source = LANE + by
        inside = source <= high
    else:
        source = LANE - by
        inside = source >= high
    return value[np.where(inside, source, LANE)], inside


def ballot(value: Mask, mask: Mask | None) -> Lanes:
    """`vote.ballot`: one bit a lane, the same word in all lanes."""
    votes = value if mask is None else value & mask
    return np.full(32, np.packbits(votes, bitorder="little").view(np.uint32)[0], dtype=np.uint32)


def vote(how: str, value: Mask, mask: Mask | None) -> Mask:
    """`vote.any`, `.all` and `.uni`."""
    votes = value if mask is None else value[mask]
    if how == "any":
        found = bool(votes.any())
    elif how == "all":
        found = bool(votes.all())
    else:
        found = bool(votes.all() or not votes.any())
    return np.full(32, found)


def elect(mask: Mask | None) -> tuple[Lanes, Mask]:
    """`elect.sync`: the lowest lane, as a number and as a predicate."""
    leader = 0 if mask is None else int(np.argmax(mask))
    return np.full(32, leader, dtype=np.uint32), ONLY[leader]


def reduce(how: str, value: Lanes, mask: Mask | None) -> Lanes:
    """`redux.sync`."""
    taken = value if mask is None else value[mask]
    return np.full(32, REDUCE[how].reduce(taken), dtype=value.dtype)


def reduce_float(how: str, value: Lanes, mask: Mask | None, nan: bool) -> Lanes:
    """`redux.sync` of f32: NaNs are left out, or win with `nan`."""
    taken = value if mask is None else value[mask]
    table = {
        ("min", False): np.fmin, ("max", False): np.fmax,
        ("min", True): np.minimum, ("max", True): np.maximum,
    }  # fmt: skip
    return np.full(32, table[how, nan].reduce(taken), dtype=value.dtype)


def match_any(value: Lanes, mask: Mask | None) -> Lanes:
    """`match.any`: which lanes hold the same value."""
    equal = (value[:, None] == value[None, :]) & all_lanes(mask)[None, :]
    return np.packbits(equal, axis=1, bitorder="little").view(np.uint32)[:, 0]


def match_all(value: Lanes, mask: Mask | None) -> tuple[Lanes, Mask]:
    """`match.all`: the member mask if all lanes agree, else 0; and whether they do."""
    taken = value[all_lanes(mask)]
    same = len(set(taken.tolist())) == 1
    word = ballot(EVERY, mask) if same else np.zeros(32, dtype=np.uint32)
    agreed: Mask = np.full(32, same)
    return word, agreed
