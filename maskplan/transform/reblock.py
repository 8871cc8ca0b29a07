"""Plans in blocks of another size."""

from dataclasses import replace
from typing import TypeVar

from maskplan.geometry import Geometry, block_pair, flag
from maskplan.normal import canonical
from maskplan.pairs import amplification, kept_pairs
from maskplan.plan import BlockLists
from maskplan.transform.provenance import derived
from maskplan.transform.retile import retile

ListsT = TypeVar("ListsT", bound=BlockLists)


def reblock(plan: ListsT, block_size: tuple[int, int], *, superset: bool = False) -> ListsT:
    """The same pairs in blocks of `block_size` tokens, up or down, the smallest cover.

    The price of larger blocks is amplification, the in-range pairs of the listed blocks over the
    kept pairs; the result's provenance records it, and `maskplan.amplification` tells it of any
    plan. For density d and groups of s unrelated rows it comes to (1 - (1 - d)^s) / d.

    A device plan is cut and joined on its device, without waiting for it, with room for as many
    blocks as its own can be cut into; its amplification is known to `amplification(plan.cpu())`.

    Args:
        plan: forward or transposed lists.
        block_size: (bq, bk) in tokens, of either type.
        superset: give up exactness: every listed block becomes full. More pairs, no bits.

    Returns:
        A canonical plan of the same type; of a device plan, a device plan.

    Raises:
        PlanTypeError: if `block_size` is not a pair of integers, or `superset` no bool.
        PlanError: if one of them is below 1, or a device plan would need room for more blocks than
            32-bit numbers count.
    """
    size = block_pair(block_size)
    superset = flag(superset, "superset")
    geometry = Geometry(seqlen_q=plan.seqlen_q, seqlen_k=plan.seqlen_k, block_size=size)
    if plan.status is not None:
        from maskplan.device.reblock import recut

        given = {"block_size": size, "superset": superset}
        result = recut(plan, geometry, superset=superset)
        return derived(result, "reblock", plan, parameters=given)
    result = retile(plan, geometry, (0, 0))
    if superset:
        result = canonical(replace(result, tile_id=None, tiles=result.tiles[:0]))
    price = amplification(result, wanted=kept_pairs(plan))
    parameters = {"block_size": size, "superset": superset, "amplification": price}
    return derived(result, "reblock", plan, parameters=parameters)
