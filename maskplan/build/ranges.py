"""Plans from ranges of queries and keys: MagiAttention slices, and packed documents."""

from typing import TypeAlias

import numpy as np

from maskplan.build.host import IntArray, Integers, int_array
from maskplan.build.slices import ABSENT, Slices, plan_of_slices
from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import Geometry
from maskplan.plan import Plan
from maskplan.provenance import Provenance
from maskplan.untransformed import untransformed

KINDS = ("full", "causal", "inverse_causal", "bi_causal")
Kinds: TypeAlias = str | int | Integers


@untransformed
def from_ranges(
    q_ranges: Integers,
    k_ranges: Integers,
    kinds: Kinds,
    seqlen_q: int,
    seqlen_k: int,
    *,
    block_size: tuple[int, int] = (128, 128),
) -> Plan:
    """The union of R slices, each a range of queries by a range of keys.

    In a slice [q0, q1) x [k0, k1) a query q sees key k where

        full (0)            always
        causal (1)          k - k1 <= q - q1, the diagonal ends in the bottom right corner
        inverse_causal (2)  k - k0 >= q - q0, the diagonal starts in the top left corner
        bi_causal (3)       both hold

    Args:
        q_ranges: int [R, 2], half open, in tokens.
        k_ranges: int [R, 2], half open, in tokens.
        kinds: names or numbers [R], or one for all slices.
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        block_size: (bq, bk), in tokens.

    Raises:
        PlanTypeError: if a range list is not int [R, 2], or a kind not a known one.
        PlanError: if a range runs backwards or past its length, or the numbers of ranges differ.

    Source: MagiAttention's `flex_flash_attn_func` (q_ranges, k_ranges, attn_type_map).
    """
    geometry = Geometry(seqlen_q=seqlen_q, seqlen_k=seqlen_k, block_size=block_size)
    queries = _ranges(q_ranges, "q_ranges", geometry.seqlen_q, "seqlen_q")
    keys = _ranges(k_ranges, "k_ranges", geometry.seqlen_k, "seqlen_k")
    _same_count("k_ranges", len(keys), "q_ranges", len(queries))
    numbers = _kind_numbers(kinds, len(queries))
    slices = _slices(queries, keys, numbers)
    provenance = Provenance(
        builder="from_ranges",
        parameters={"ranges": len(slices), "kinds": [KINDS[n] for n in np.unique(numbers)]},
    )
    return plan_of_slices([slices], geometry, provenance)


@untransformed
def from_cu_seqlens(
    cu_seqlens_q: Integers,
    cu_seqlens_k: Integers | None = None,
    kinds: Kinds = "full",
    *,
    block_size: tuple[int, int] = (128, 128),
) -> Plan:
    """Documents packed one after another, each attending to itself only.

    Args:
        cu_seqlens_q: int [R + 1], cumulative query lengths: document r is tokens
            [cu_seqlens_q[r], cu_seqlens_q[r + 1]); the last is SQ.
        cu_seqlens_k: the same of the keys, or None where they are the queries'.
        kinds: as in `from_ranges`, per document or one for all; "causal" is bottom-right aligned.
        block_size: (bq, bk), in tokens.

    Raises:
        PlanTypeError: if a list is not int [R + 1], or a kind not a known one.
        PlanError: if a list does not start at 0 or decreases, or the numbers of documents differ.
    """
    queries = _cumulative(cu_seqlens_q, "cu_seqlens_q")
    keys = queries if cu_seqlens_k is None else _cumulative(cu_seqlens_k, "cu_seqlens_k")
    _same_count("cu_seqlens_k", len(keys), "cu_seqlens_q", len(queries))
    geometry = Geometry(seqlen_q=int(queries[-1]), seqlen_k=int(keys[-1]), block_size=block_size)
    numbers = _kind_numbers(kinds, len(queries) - 1)
    slices = _slices(
        np.stack([queries[:-1], queries[1:]], axis=1),
        np.stack([keys[:-1], keys[1:]], axis=1),
        numbers,
    )
    provenance = Provenance(
        builder="from_cu_seqlens",
        parameters={"documents": len(slices), "kinds": [KINDS[n] for n in np.unique(numbers)]},
    )
    return plan_of_slices([slices], geometry, provenance)


def _slices(queries: IntArray, keys: IntArray, numbers: IntArray) -> Slices:
    q0, q1, k0, k1 = queries[:, 0], queries[:, 1], keys[:, 0], keys[:, 1]
    low = np.where(numbers & 2, k0 - q0, -ABSENT)
    high = np.where(numbers & 1, k1 - q1 + 1, ABSENT)
    return np.stack([q0, q1, k0, k1, low, high], axis=1)


def _ranges(values: Integers, name: str, length: int, length_name: str) -> IntArray:
    ranges = int_array(values, name, (None, 2))
    bad = (ranges[:, 0] < 0) | (ranges[:, 1] < ranges[:, 0]) | (ranges[:, 1] > length)
    if bad.any():
        at = int(bad.argmax())
        raise PlanError(
            sentence(
                what="range runs backwards or out of the sequence",
                where=f"{name}[{at}]",
                got=f"[{ranges[at, 0]}, {ranges[at, 1]})",
                wanted=f"0 <= start <= stop <= {length_name} = {length}",
                remedy="clip the range, or plan for longer lengths",
            )
        )
    return ranges


def _cumulative(values: Integers, name: str) -> IntArray:
    sums = int_array(values, name, (None,))
    down = sums[1:] < sums[:-1]  # a difference could overflow
    starts_at_0 = len(sums) > 0 and sums[0] == 0
    if not starts_at_0 or down.any():
        at = int(down.argmax()) + 1 if starts_at_0 else 0
        raise PlanError(
            sentence(
                what="cumulative lengths do not start at 0 or decrease",
                where=f"{name}[{at}]",
                got=int(sums[at]) if len(sums) else "no entries",
                wanted="0" if at == 0 else f"at least {sums[at - 1]}",
                remedy="pass 0 followed by the running sums of the lengths",
            )
        )
    return sums


def _same_count(name: str, count: int, other: str, wanted: int) -> None:
    if count != wanted:
        raise PlanError(
            sentence(
                what="lists of different lengths",
                where=name,
                got=f"{count} entries",
                wanted=f"{wanted}, as {other}",
                remedy="pass one range of keys for each range of queries",
            )
        )


def _kind_numbers(kinds: Kinds, count: int) -> IntArray:
    """Kinds as numbers, int64 [count]."""
    if isinstance(kinds, (str, int, np.integer)):
        return np.full(count, _kind_number(kinds, "kinds"), dtype=np.int64)
    given = kinds if isinstance(kinds, (list, tuple)) else int_array(kinds, "kinds", (None,))
    _same_count("kinds", len(given), "q_ranges", count)
    numbers = [_kind_number(kind, f"kinds[{at}]") for at, kind in enumerate(given)]
    return np.array(numbers, dtype=np.int64)


def _kind_number(kind: object, where: str) -> int:
    if isinstance(kind, str) and kind.replace("-", "_") in KINDS:
        return KINDS.index(kind.replace("-", "_"))
    if isinstance(kind, (int, np.integer)) and not isinstance(kind, bool) and 0 <= kind < 4:
        return int(kind)
    raise PlanTypeError(
        sentence(
            what="unknown kind of slice",
            where=where,
            got=repr(kind),
            wanted=", ".join(f"{name!r} or {n}" for n, name in enumerate(KINDS)),
            remedy="pass one of these",
        )
    )
