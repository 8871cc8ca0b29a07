"""Set algebra: pairs kept by both plans, by either, or by one and not the other."""

from collections.abc import Callable

import numpy as np
import torch

from maskplan.bits import pack
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import Axes
from maskplan.normal import canonical
from maskplan.patterns.token_order import TokenOrder
from maskplan.plan import Plan
from maskplan.transform.provenance import derived

_Bits = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _without(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    kept: np.ndarray = one & ~other
    return kept


_OPERATIONS: dict[str, tuple[int, _Bits]] = {
    "&": (0, np.bitwise_and),
    "|": (1, np.bitwise_or),
    "-": (2, _without),
}


def _lengths(plan: Plan) -> object:
    return plan.seqlen_q, plan.seqlen_k


def _block_size(plan: Plan) -> object:
    return plan.block_size


def _device(plan: Plan) -> object:
    return str(plan.device)


def combine(left: Plan, right: Plan, operation: str) -> Plan:
    """The plan whose dense mask is `left & right`, `left | right` or `left & ~right`.

    Batch and heads of 1 broadcast. Each distinct pair of patterns is merged once, each distinct
    pair of tiles combined once. O(blocks of both).

    Raises:
        PlanTypeError: if `right` is not a Plan.
        PlanError: if lengths, block sizes, devices or known token orders differ, or batch and heads
            do not broadcast.
    """
    _check(left, right, operation)
    code, bits = _OPERATIONS[operation]
    pairs, pattern_id = _pattern_pairs(left, right)
    row_ptr, col, content = _merged(left, right, code, pairs)
    tile_id, tiles = _tiles(left, right, content, bits)
    result = canonical(
        Plan(
            geometry=left.geometry,
            pattern_id=torch.from_numpy(pattern_id),
            row_ptr=torch.from_numpy(row_ptr),
            col=torch.from_numpy(col),
            tile_id=torch.from_numpy(tile_id),
            tiles=torch.from_numpy(tiles),
        )
    )
    return derived(result, operation, left, right, parameters={})


def _check(left: Plan, right: Plan, operation: str) -> None:
    where = f"plan {operation} plan"
    if not isinstance(right, Plan):
        raise PlanTypeError(
            sentence(
                what="operand is not a Plan",
                where=where,
                got=type(right).__name__,
                wanted="two forward plans",
                remedy="transpose a TransposedPlan back first",
            )
        )
    facts = {"lengths (SQ, SK)": _lengths, "block sizes": _block_size, "devices": _device}
    for name, fact in facts.items():
        if fact(left) != fact(right):
            raise PlanError(
                sentence(
                    what=f"{name} differ",
                    where=where,
                    got=f"{fact(left)} and {fact(right)}",
                    wanted="the same on both sides",
                    remedy="reblock, crop or rebuild one of them",
                )
            )
    _check_order(left, right, where)
    for name in ("batch", "heads"):
        one, other = getattr(left, name), getattr(right, name)
        if one != other and 1 not in {one, other}:
            raise PlanError(
                sentence(
                    what=f"{name} does not broadcast",
                    where=where,
                    got=f"{one} and {other}",
                    wanted="equal sizes, or 1",
                    remedy="use with_heads, or plan both for the same batch",
                )
            )


def _check_order(left: Plan, right: Plan, where: str) -> None:
    """Refuse plans whose token i is known to be another token on each side.

    A plan that states no grid says nothing of what its tokens are, and fits any.
    """
    one, other = (_order_of(plan) for plan in (left, right))
    if one is None or other is None or one == other:
        return
    if one.grid == other.grid and torch.equal(one.slots, other.slots):
        return
    raise PlanError(
        sentence(
            what="tokens lie in different orders",
            where=where,
            got=f"{_in_words(one)} and {_in_words(other)}",
            wanted="the same grid and token order on both sides",
            remedy="plan both in one order; replace(plan, provenance=None) drops a wrong claim",
        )
    )


def _order_of(plan: Plan) -> TokenOrder | None:
    """The order of a plan's tokens; None where none is stated, or one that does not fit."""
    if plan.provenance is None:
        return None
    try:
        order = TokenOrder.from_provenance(plan.provenance)
    except (KeyError, TypeError, ValueError, OverflowError):  # ours are ValueErrors too
        return None
    # Looked at first: what is claimed may be too large to lay out.
    fits = order is not None and order.grid.seqlen <= plan.seqlen_k == order.seqlen
    return order if fits else None


def _in_words(order: TokenOrder) -> str:
    padded = "" if order.multiple == 1 else f" of {order.multiple} slots"
    return f"tiles {order.tile}{padded} of {order.grid}"


def _pattern_pairs(left: Plan, right: Plan) -> tuple[np.ndarray, np.ndarray]:
    """(distinct pairs of patterns int64 [P, 2], pattern_id of the result)."""
    one, other = np.broadcast_arrays(left.pattern_id.numpy(), right.pattern_id.numpy())
    codes = one.astype(np.int64) * right.num_patterns + other
    distinct, inverse = np.unique(codes, return_inverse=True)
    pairs = np.stack(np.divmod(distinct, right.num_patterns), axis=1)
    return np.ascontiguousarray(pairs), inverse.reshape(codes.shape).astype(np.int32)


def _merged(
    left: Plan, right: Plan, code: int, pairs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from maskplan.transform import combine_kernel as kernels

    axes = left.axes
    none = np.empty(0, dtype=np.int32)
    sides = [
        (p.row_ptr.numpy(), p.col.numpy(), none if p.tile_id is None else p.tile_id.numpy())
        for p in (left, right)
    ]
    offsets = (left.num_tiles, right.num_tiles, left.num_tiles + right.num_tiles)
    ragged_row = axes.rows - 1 if axes.row_len % axes.row_block else -1
    ragged_col = axes.cols - 1 if axes.col_len % axes.col_block else -1
    sizes = (axes.rows, ragged_row, ragged_col)
    row_ptr = np.zeros(len(pairs) * axes.rows + 1, dtype=np.int64)
    content = np.empty(0, dtype=np.int64)
    total = kernels.merge(code, *sides, pairs, offsets, sizes, row_ptr, none, content)
    col, content = np.empty(total, dtype=np.int32), np.empty(total, dtype=np.int64)
    if total:
        kernels.merge(code, *sides, pairs, offsets, sizes, row_ptr, col, content)
    return row_ptr, col, content


def _tiles(
    left: Plan,
    right: Plan,
    content: np.ndarray,
    bits: _Bits,
) -> tuple[np.ndarray, np.ndarray]:
    """(tile_id, tiles): both plans' tiles, then one for each distinct pair to be combined."""
    tiles_a, tiles_b = left.tiles.numpy(), right.tiles.numpy()
    known = len(tiles_a) + len(tiles_b)
    pending = content >= known
    codes, inverse = np.unique(content[pending] - known, return_inverse=True)
    content[pending] = known + inverse
    pair, edge = np.divmod(codes, 4)
    a, b = np.divmod(pair, max(len(tiles_b), 1))
    # Tile 0 of this stack stands for a full left side; its four versions follow the edges.
    full = _full_tiles(left.axes)
    tile_of_a = np.where((a == 0)[:, None, None], full[edge], _padded(tiles_a)[a])
    made = bits(tile_of_a, tiles_b[b]) if len(codes) else tiles_a[:0]
    return content.astype(np.int32), np.concatenate([tiles_a, tiles_b, made])


def _padded(tiles: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros_like(tiles, shape=(1, *tiles.shape[1:])), tiles])


def _full_tiles(axes: Axes) -> np.ndarray:
    """Bits of a full block: inside, on the right edge, on the bottom edge, in the corner."""
    keep = torch.ones(4, axes.row_block, axes.col_block, dtype=torch.bool, device="cpu")
    keep[2:, axes.row_len % axes.row_block or axes.row_block :] = False
    keep[1::2, :, axes.col_len % axes.col_block or axes.col_block :] = False
    return pack(keep).numpy()
