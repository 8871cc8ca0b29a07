"""How many blocks a share of them is: the rounding, and what is counted, said in the call."""

import math
from fractions import Fraction

from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer, number

_ROUNDINGS = {"floor": math.floor, "ceil": math.ceil}


def budget(
    total: int | Fraction,
    *,
    density: float | None = None,
    sparsity: float | None = None,
    rounding: str,
    at_least: int = 1,
) -> int:
    """Blocks to select: a share of `total`, rounded as named.

    A share is read as the decimal it is written as: 0.9 is nine tenths, so that sparsity=0.9 of 10
    blocks leaves exactly 1 under either rounding. (In binary floats 1 - 0.9 is less than 0.1.)

    Args:
        total: blocks; `tile_total` counts those of a grid.
        density: the share to keep, from 0 to 1.
        sparsity: the share to drop; give one of the two.
        rounding: "floor" (SpargeAttn, SLA, SVG2) or "ceil" (VSA).
        at_least: the smallest result, unless `total` itself is smaller. 0 lets a row be empty.

    Raises:
        PlanError: if not exactly one share is given, it is outside [0, 1], or the rounding unknown.

    >>> budget(1440, sparsity=0.9, rounding="ceil")
    144
    >>> [budget(3, density=0.2, rounding="floor", at_least=least) for least in (0, 1)]
    [0, 1]
    """
    given = {name: v for name, v in (("density", density), ("sparsity", sparsity)) if v is not None}
    if len(given) != 1:
        raise _error("one share is needed", "density, sparsity", given, "exactly one", "give one")
    name, value = next(iter(given.items()))
    value = number(value, name)
    if not 0 <= value <= 1:
        remedy = "pass a share of all blocks"
        raise _error("share is out of range", name, value, f"0 <= {name} <= 1", remedy)
    if rounding not in _ROUNDINGS:
        wanted = " or ".join(map(repr, _ROUNDINGS))
        raise _error("unknown rounding", "rounding", repr(rounding), wanted, "name one of these")
    share = Fraction(repr(float(value)))
    keep = share if name == "density" else 1 - share
    count = _ROUNDINGS[rounding](keep * Fraction(total))
    return min(max(count, integer(at_least, "at_least")), math.ceil(total))


def tile_total(shape: tuple[int, int, int], tile: tuple[int, int, int], *, of: str) -> Fraction:
    """Tiles of the video tokens of a grid.

    Args:
        shape: video tokens along (t, h, w), `Grid.shape`.
        tile: tokens of a tile along (t, h, w).
        of: "padded": tiles there are, where those at the edges count whole (VSA). "real": tokens
            over tokens of a tile, which a partial tile adds to in part.

    Raises:
        PlanError: if `of` is neither, or a side of the tile below 1.

    >>> [budget(tile_total((21, 45, 80), (4, 4, 4), of=of), sparsity=0.9, rounding="ceil")
    ...  for of in ("padded", "real")]
    [144, 119]
    """
    sides = [integer(side, f"tile[{axis}]", low=1) for side, axis in zip(tile, "thw", strict=True)]
    sizes = [integer(size, f"shape[{axis}]") for size, axis in zip(shape, "thw", strict=True)]
    if of not in ("padded", "real"):
        remedy = "say whether partial tiles count whole"
        raise _error("unknown count", "of", repr(of), "'padded' or 'real'", remedy)
    if of == "padded":
        counts = (-(-size // side) for size, side in zip(sizes, sides, strict=True))
        return Fraction(math.prod(counts))
    return Fraction(math.prod(sizes), math.prod(sides))


def _error(what: str, where: str, got: object, wanted: str, remedy: str) -> PlanError:
    return PlanError(sentence(what=what, where=where, got=got, wanted=wanted, remedy=remedy))
