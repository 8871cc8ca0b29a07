"""Plans from top-k lists: for each query, or each Q block, the keys or KV blocks it selects."""

from torch import Tensor

from maskplan.build.topk_arguments import GivenTopk, checked_topk
from maskplan.build.topk_reader import TopkReader
from maskplan.device.move import on_gpu
from maskplan.errors import PlanError, sentence
from maskplan.geometry import flag, integer
from maskplan.plan import Plan
from maskplan.untransformed import untransformed


@untransformed
def from_topk(
    indices: Tensor,
    seqlen_k: int,
    *,
    block_size: tuple[int, int] = (128, 128),
    rows: str = "token",
    unit: str = "token",
    base: str = "local",
    lengths: Tensor | None = None,
    seqlen_q: int | None = None,
    whole: bool = False,
    capacity: int | None = None,
) -> Plan:
    """The plan of lists of selected keys.

    -1 is no key, in any slot; a key listed twice counts once. A Q block of several queries lists
    the union of their blocks, and bits keep it exact. Axes that `expand` broadcast over batch or
    heads are planned once. Each thread holds bits of SK keys for the lists of one Q block.

    Indices on a GPU become a device plan, without waiting for the device: then an index out of
    range or a length beyond topk is dropped and recorded in the plan's status word, which
    `validate()` and `cpu()` read. Its memory follows from shapes: room for as many blocks as there
    can be, and for a tile of each, which together are the bits of P x SQ x SK pairs. `whole=True`
    leaves the tiles out.

    Args:
        indices: int32 or int64 [batch, heads, rows, topk], any strides, on the CPU or a GPU.
        seqlen_k: SK, in tokens.
        block_size: (bq, bk), in tokens.
        rows: "token": a list per query, rows = SQ. "block": a list per Q block, rows = M, and each
            query of the block sees all of it; needs `seqlen_q`.
        unit: "token": an index is a key. "block": an index is a KV block of bk tokens.
        base: "local": indices count from the start of their own batch. "global": of all batches,
            batch * SK + key, or batch * N + block.
        lengths: int32 or int64 [batch, heads, rows], sizes of 1 broadcast: the leading lanes of
            each list that hold; what lies beyond is ignored, valid or not.
        seqlen_q: SQ, in tokens.
        whole: say that every listed block is full: each list of a Q block holds all keys of each of
            its blocks. A device plan then needs no tiles; a block that is partial after all is
            dropped and recorded.
        capacity: room for blocks in a device plan, by default for all there can be; blocks beyond
            it are dropped and recorded. Of no consequence on the CPU.

    Raises:
        PlanTypeError: if an argument has the wrong dtype or rank, or an option is not a known one.
        PlanError: if an index is out of range or belongs to another batch (with its place), a
            length exceeds topk, a block is partial in spite of `whole`, or the number of rows does
            not fit `seqlen_q`.
    """
    given = checked_topk(
        indices, seqlen_k, block_size=block_size, rows=rows, unit=unit, base=base, lengths=lengths,
        seqlen_q=seqlen_q,
    )  # fmt: skip
    return plan_of_lists(given, whole=whole, capacity=capacity)


def plan_of_lists(given: GivenTopk, *, whole: bool, capacity: int | None = None) -> Plan:
    """`from_topk` of checked lists.

    Raises:
        PlanTypeError: if `whole` is no bool or `capacity` no integer.
        PlanError: as `from_topk`, for what indices hold.
    """
    whole = flag(whole, "whole")
    room = None if capacity is None else integer(capacity, "capacity")
    if on_gpu(given.indices):
        lists = given.on_device(whole=whole, capacity=room)
        return lists.plan(given.pattern_id, given.provenance)
    reader = TopkReader(
        indices=given.indices,
        lengths=given.lengths,
        geometry=given.geometry,
        lists=given.per_row,
        whole=given.unit == "block",
        is_global=given.base == "global",
    )
    plan = reader.plan(given.pattern_id, given.provenance)
    if whole and plan.tile_id is not None:
        raise _not_whole(plan)
    return plan


def _not_whole(plan: Plan) -> PlanError:
    assert plan.tile_id is not None
    entry = int((plan.tile_id >= 0).nonzero()[0])
    line = int((plan.row_ptr <= entry).sum()) - 1
    pattern, row = divmod(line, plan.axes.rows)
    return PlanError(
        sentence(
            what="block is not whole",
            where=f"pattern {pattern}, Q block {row}, KV block {int(plan.col[entry])}",
            got="some of its pairs, with whole=True",
            wanted="all of its pairs",
            remedy="leave out whole=True: bits then keep such blocks exact",
        )
    )
