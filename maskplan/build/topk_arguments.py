"""Arguments of `from_topk`, checked at the door."""

import torch
from torch import Tensor

from maskplan.build.host import index_tensor, rank
from maskplan.device.move import on_gpu
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import Geometry


def check_option(name: str, value: str, options: tuple[str, ...]) -> None:
    """Refuse a `value` that is none of the options.

    Raises:
        PlanTypeError: if it is none.
    """
    if value not in options:
        raise PlanTypeError(
            sentence(
                what="unknown option",
                where=name,
                got=repr(value),
                wanted=" or ".join(map(repr, options)),
                remedy="pass one of these",
            )
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
