"""Plans from dense token masks."""

from torch import Tensor

from maskplan.build.dense_rows import DenseRows
from maskplan.build.host import bool_tensor
from maskplan.build.pattern_axes import distinct, with_heads_axes
from maskplan.geometry import Geometry
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.untransformed import untransformed


@untransformed
def from_token_mask(mask: Tensor, *, block_size: tuple[int, int] = (128, 128)) -> Plan:
    """The plan that keeps exactly the pairs that are True.

    Reads the rows of one Q block at a time. Axes that `expand` broadcast over batch or heads are
    planned once.

    Args:
        mask: bool [SQ, SK], [heads, SQ, SK] or [batch, heads, SQ, SK], any strides.
        block_size: (bq, bk), in tokens.

    Raises:
        PlanTypeError: if `mask` is not a bool tensor of 2 to 4 axes on the CPU.
    """
    full = with_heads_axes(bool_tensor(mask, "mask"), "mask", "SQ, SK")
    geometry = Geometry(seqlen_q=full.shape[2], seqlen_k=full.shape[3], block_size=block_size)
    pattern_id, (own,) = distinct(full)
    rows = DenseRows(geometry)
    for head in own.flatten(0, 1) if own.is_contiguous() else (h for b in own for h in b):
        for top in range(0, geometry.seqlen_q, geometry.block_size[0]):
            rows.put(head[top : top + geometry.block_size[0]])
            rows.end_block()
    return rows.plan(pattern_id, Provenance(builder="from_token_mask"))
