"""Arguments of `from_topk`, checked at the door."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.build.host import index_tensor, rank
from maskplan.build.pattern_axes import distinct, require_heads
from maskplan.device.move import on_gpu
from maskplan.device.topk import TopkLists
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import Geometry, option
from maskplan.provenance import Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTopk:
    """Checked lists, each distinct one once.

    Attributes:
        indices: int32 or int64 [b, h, lists, topk], any strides.
        lengths: int64 [b, h, lists], any strides, or None.
        geometry: lengths and block size.
        rows: "token" or "block".
        unit: "token" or "block".
        base: "local" or "global".
        pattern_id: int32 [batch, heads]: which of the b * h patterns each has.
    """

    indices: Tensor
    lengths: Tensor | None
    geometry: Geometry
    rows: str
    unit: str
    base: str
    pattern_id: Tensor

    @property
    def per_row(self) -> int:
        """Lists of a Q block."""
        return 1 if self.rows == "block" else self.geometry.block_size[0]

    @property
    def provenance(self) -> Provenance:
        """How a plan of them was made."""
        parameters = {
            "topk": self.indices.shape[3],
            "rows": self.rows,
            "unit": self.unit,
            "base": self.base,
        }
        return Provenance(builder="from_topk", parameters=parameters)

    def on_device(self, *, whole: bool, capacity: int | None) -> TopkLists:
        """The lists as a GPU reads them."""
        return TopkLists(
            indices=self.indices,
            lengths=self.lengths,
            geometry=self.geometry,
            per_row=self.per_row,
            unit_block=self.unit == "block",
            is_global=self.base == "global",
            whole=whole,
            capacity=capacity,
        )


def checked_topk(
    indices: Tensor,
    seqlen_k: int,
    *,
    block_size: tuple[int, int],
    rows: str,
    unit: str,
    base: str,
    lengths: Tensor | None,
    seqlen_q: int | None,
) -> GivenTopk:
    """The lists of `from_topk`; values on a GPU are its kernels' to check.

    Raises:
        PlanTypeError: if an argument has the wrong dtype or rank, or an option is not a known one.
        PlanError: if sizes do not fit, or on the CPU a length is out of range.
    """
    for name, value, options in (
        ("rows", rows, ("token", "block")),
        ("unit", unit, ("token", "block")),
        ("base", base, ("local", "global")),
    ):
        option(value, name, options)
    index_tensor(indices, "indices", or_gpu=True)
    rank(
        indices,
        "indices",
        (4,),
        "[batch, heads, rows, topk]",
        "say which axis is missing: indices[:, None] where all heads share [batch, rows, topk], "
        "indices.transpose(1, 2) for [batch, rows, heads, topk]",
    )
    require_heads(indices, "indices")
    geometry = geometry_of(indices, seqlen_k, block_size, rows, seqlen_q)
    parts = [indices] if lengths is None else [indices, checked_lengths(lengths, indices)]
    pattern_id, own = distinct(*parts, batch_shared=base == "local")
    return GivenTopk(
        indices=own[0],
        lengths=None if lengths is None else own[1],
        geometry=geometry,
        rows=rows,
        unit=unit,
        base=base,
        pattern_id=pattern_id,
    )


def geometry_of(
    indices: Tensor, seqlen_k: int, block_size: tuple[int, int], rows: str, seqlen_q: int | None
) -> Geometry:
    """The geometry that the lists [batch, heads, rows, topk] are for.

    Raises:
        PlanError: if it cannot be told, or there is another number of lists.
    """
    lists = indices.shape[2]
    if seqlen_q is None:
        if rows == "block":
            raise PlanError(
                sentence(
                    what="query length is not given",
                    where="seqlen_q",
                    got="None with rows='block'",
                    wanted="the number of queries",
                    remedy=f"pass seqlen_q, which {lists} Q blocks do not tell",
                )
            )
        seqlen_q = lists
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    wanted = geometry.seqlen_q if rows == "token" else geometry.num_q_blocks
    if lists != wanted:
        per = "query" if rows == "token" else "Q block"
        raise PlanError(
            sentence(
                what="wrong number of lists",
                where="indices, axis 2 (rows)",
                got=lists,
                wanted=f"{wanted}, one list per {per} of {geometry}",
                remedy="pass the seqlen_q and block_size that the lists were made for",
            )
        )
    return geometry


def checked_lengths(lengths: Tensor, indices: Tensor) -> Tensor:
    """`lengths` as int64 [batch, heads, rows], checked against the lists.

    Raises:
        PlanTypeError: if it has the wrong dtype or rank, or is on another device.
        PlanError: if its shape does not fit, or on the CPU a length is out of range.
    """
    index_tensor(lengths, "lengths", or_gpu=True)
    if lengths.device != indices.device:
        raise PlanTypeError(
            sentence(
                what="lengths are on another device",
                where="lengths",
                got=lengths.device,
                wanted=f"{indices.device}, as indices",
                remedy="pass lengths.to(indices.device)",
            )
        )
    wanted = tuple(indices.shape[:3])
    rank(lengths, "lengths", (3,), f"{list(wanted)}, as indices", "add the axes of size 1")
    if any(size not in (1, full) for size, full in zip(lengths.shape, wanted, strict=True)):
        raise PlanError(
            sentence(
                what="lengths do not fit the lists",
                where="lengths",
                got=f"shape {list(lengths.shape)}",
                wanted=f"{list(wanted)}, or 1 in place of a size",
                remedy="pass one length for each list",
            )
        )
    if on_gpu(lengths):  # values are the kernels' to check
        return lengths.to(torch.int64).expand(wanted)
    topk = indices.shape[3]
    bad = ((lengths < 0) | (lengths > topk)).nonzero()
    if len(bad):
        b, h, row = bad[0].tolist()
        raise PlanError(
            sentence(
                what="length out of range",
                where=f"lengths[b={b}, h={h}, row={row}]",
                got=int(lengths[b, h, row]),
                wanted=f"0 <= length <= topk = {topk}",
                remedy="count the lanes of indices that hold",
            )
        )
    return lengths.to(torch.int64).expand(wanted)
