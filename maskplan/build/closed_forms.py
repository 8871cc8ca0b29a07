"""Plans that a few numbers say: full, causal, a sliding window, documents."""

import torch

from maskplan.build.host import Integers, int_array
from maskplan.build.slices import ABSENT, as_slices, plan_of_slices
from maskplan.device.closed import band
from maskplan.device.move import gpu
from maskplan.errors import PlanError, sentence
from maskplan.geometry import Geometry, flag, integer
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.untransformed import untransformed

ALIGNMENTS = ("top_left", "bottom_right")


@untransformed
def full(
    seqlen_q: int,
    seqlen_k: int,
    *,
    block_size: tuple[int, int] = (128, 128),
    device: torch.device | str | None = None,
) -> Plan:
    """Every query sees every key.

    Args:
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        block_size: (bq, bk), in tokens.
        device: where to make it: a GPU gives a device plan, by default the CPU an exact one.
    """
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    return _band(geometry, -ABSENT, ABSENT, Provenance(builder="full"), device)


@untransformed
def causal(
    seqlen_q: int,
    seqlen_k: int,
    *,
    align: str | None = None,
    block_size: tuple[int, int] = (128, 128),
    device: torch.device | str | None = None,
) -> Plan:
    """Each query sees the keys up to its own position.

    Args:
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        align: where query and key positions meet, needed when the lengths differ. "top_left":
            query 0 is at key 0; "bottom_right": the last query is at the last key.
        block_size: (bq, bk), in tokens.
        device: as in `full`.

    Raises:
        PlanError: if the lengths differ and `align` is not one of the two.
    """
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    offset = _offset(geometry, align)
    provenance = Provenance(builder="causal", parameters={} if align is None else {"align": align})
    return _band(geometry, -ABSENT, offset + 1, provenance, device)


@untransformed
def sliding_window(
    seqlen_q: int,
    seqlen_k: int,
    *,
    left: int | None,
    right: int | None,
    align: str | None = None,
    block_size: tuple[int, int] = (128, 128),
    device: torch.device | str | None = None,
) -> Plan:
    """Each query sees the keys from `left` before its own position to `right` after it.

    Args:
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        left: keys before, in tokens; None is all of them.
        right: keys after, in tokens; None is all of them. (left=w, right=0) is a causal window.
        align: as in `causal`.
        block_size: (bq, bk), in tokens.
        device: as in `full`.

    Raises:
        PlanError: if a side is negative, or the lengths differ and `align` is not given.
    """
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    offset = _offset(geometry, align)
    sides = {
        name: None if side is None else integer(side, name, low=-ABSENT, high=ABSENT)
        for name, side in (("left", left), ("right", right))
    }
    left, right = sides["left"], sides["right"]
    for name, side in sides.items():
        if side is not None and side < 0:
            raise PlanError(
                sentence(
                    what="window side is negative",
                    where=name,
                    got=side,
                    wanted="a number of tokens from 0 up, or None",
                    remedy=f"pass {name}=None for a side without end",
                )
            )
    low = -ABSENT if left is None else offset - left
    high = ABSENT if right is None else offset + right + 1
    parameters = sides if align is None else {**sides, "align": align}
    provenance = Provenance(builder="sliding_window", parameters=parameters)
    return _band(geometry, low, high, provenance, device)


@untransformed
def documents(
    lengths: Integers, *, causal: bool = False, block_size: tuple[int, int] = (128, 128)
) -> Plan:
    """Documents one after another, each attending to itself only.

    Args:
        lengths: int [documents], in tokens; SQ = SK = their sum. A length of 0 is allowed.
        causal: within a document, see keys up to the query's own position only.
        block_size: (bq, bk), in tokens.

    Raises:
        PlanTypeError: if `lengths` is not a list of integers, or `causal` no bool.
        PlanError: if one is negative.
    """
    causal = flag(causal, "causal")
    runs = int_array(lengths, "lengths", (None,))
    if (runs < 0).any():
        at = int((runs < 0).argmax())
        raise PlanError(
            sentence(
                what="negative document length",
                where=f"lengths[{at}]",
                got=int(runs[at]),
                wanted="a number of tokens from 0 up",
                remedy="pass the documents' lengths, not their ends",
            )
        )
    total = sum(runs.tolist())  # in Python's integers: the sum may pass 64 bits
    geometry = Geometry(seqlen_q=total, seqlen_k=total, block_size=block_size)
    stops = runs.cumsum().tolist()
    starts = [0, *stops[:-1]]
    high = 1 if causal else ABSENT
    slices = [(a, b, a, b, -ABSENT, high) for a, b in zip(starts, stops, strict=False)]
    parameters = {"documents": len(runs), "causal": causal}
    return plan_of_slices(
        [as_slices(slices)], geometry, Provenance(builder="documents", parameters=parameters)
    )


def _band(
    geometry: Geometry,
    low: int,
    high: int,
    provenance: Provenance,
    device: torch.device | str | None,
) -> Plan:
    place = gpu(device)
    if place is not None:
        return band(geometry, low, high, provenance, place)
    slices = as_slices([(0, geometry.seqlen_q, 0, geometry.seqlen_k, low, high)])
    return plan_of_slices([slices], geometry, provenance)


def _offset(geometry: Geometry, align: str | None) -> int:
    """Position of query 0 among the keys."""
    seqlen_q, seqlen_k = geometry.seqlen_q, geometry.seqlen_k
    if align is not None and align not in ALIGNMENTS:
        raise PlanError(
            sentence(
                what="unknown alignment",
                where="align",
                got=repr(align),
                wanted=" or ".join(map(repr, ALIGNMENTS)),
                remedy="pass one of these",
            )
        )
    if align is None and seqlen_q != seqlen_k:
        raise PlanError(
            sentence(
                what="alignment is not given for unequal lengths",
                where="align",
                got=f"None with seqlen_q = {seqlen_q} and seqlen_k = {seqlen_k}",
                wanted=" or ".join(map(repr, ALIGNMENTS)),
                remedy="say where the diagonal lies: 'bottom_right' is flash-attn's meaning",
            )
        )
    return seqlen_k - seqlen_q if align == "bottom_right" else 0
