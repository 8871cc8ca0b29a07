"""`PlanCache`: lowered plans kept for the next call, in an object that the caller holds.

NOTE [Overwritten plans]: torch counts what is written to a tensor in place, and an entry remembers
the counts of its plan's arrays. Not counted are the replay of a CUDA graph, what NumPy writes, and
inference tensors. So a plan that a graph makes is lowered in that graph, and a plan of inference
tensors is never written to.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from threading import RLock
from typing import NamedTuple

import torch

from maskplan.device.place import placed
from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.lower.listed import SHAPE
from maskplan.lower.lowered import LoweredPlan
from maskplan.lower.lowering import check_plan
from maskplan.lower.options import check_known, directions
from maskplan.lower.packing import writes_to
from maskplan.lower.target import Target, check_target
from maskplan.lower.token_tiles import TokenTiles
from maskplan.plan import Plan
from maskplan.untransformed import untransformed

_KEYS = ("identity", "digest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """The arguments of `Plan.lower` that one backend wants for one call. Hashable.

    Attributes:
        target: a Target, or a name that `Plan.lower` takes.
        backward: which directions to make.
        shape: of "flex" and "fa4", (name, value) of head_dim, head_dim_v, heads, kv_heads, arch.
    """

    target: Target | str
    backward: tuple[str, ...] = ("loop_q",)
    shape: tuple[tuple[str, int | str], ...] = ()

    def of(self, plan: Plan | TokenTiles) -> LoweredPlan:
        """`plan`, lowered so."""
        if isinstance(plan, TokenTiles):
            return plan.lower()
        return plan.lower(self.target, backward=self.backward, **dict(self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """What a cache has done so far.

    Attributes:
        hits: lookups that found a lowered plan.
        misses: lookups that lowered one.
        evictions: entries dropped for room.
        size: entries now held.
        nbytes: bytes of their tensors, each tensor once an entry.
    """

    hits: int
    misses: int
    evictions: int
    size: int
    nbytes: int


class _Entry(NamedTuple):
    plan: Plan | TokenTiles
    writes: tuple[int, ...]
    lowered: LoweredPlan


class PlanCache:
    """The last `capacity` lowered plans, found by plan, target and device.

    A plan is a frozen value and remembers nothing, so a loop that calls `attention` with a Plan
    would lower it each time. This is where to keep what was made: pass it as
    `attention(..., cache=)`, or ask it for a plan by `lower`. What it holds lives as long as it.
    The least recently used entry makes room for a new one. Threads may share it.

    A plan whose arrays were written to in place since, as a device plan in static memory is, is
    lowered again: NOTE [Overwritten plans].

    Args:
        capacity: entries held, at least 1.
        by: "identity" finds a plan only as the same object, which costs nothing; "digest" also
            finds an equal one, at the cost of hashing it on each lookup; of plans on a CPU alone.

    Raises:
        PlanTypeError: if `capacity` is no integer.
        PlanError: if it is below 1, or `by` is neither.
    """

    def __init__(self, capacity: int = 64, *, by: str = "identity") -> None:
        self._capacity = integer(capacity, "capacity", low=1)
        if by not in _KEYS:
            raise PlanError(
                sentence(
                    what="unknown key",
                    where="PlanCache",
                    got=repr(by),
                    wanted=" or ".join(repr(key) for key in _KEYS),
                    remedy="pass one of these as by",
                )
            )
        self._by = by
        # Plans are held too: an id names an object only while it lives.
        self._entries: OrderedDict[tuple[object, ...], _Entry] = OrderedDict()
        self._lock = RLock()
        self._hits = self._misses = self._evictions = 0

    def lower(
        self,
        plan: Plan,
        target: Target | str,
        *,
        backward: Collection[str] = ("loop_q",),
        device: torch.device | str | None = None,
        **shape: int | str,
    ) -> LoweredPlan:
        """`plan.lower(target, ...)` on a device, from the cache or into it.

        Args:
            plan: forward lists.
            target: as in `Plan.lower`.
            backward: likewise.
            device: where the result is to lie; None for where the plan is.
            **shape: as in `Plan.lower`.

        Raises:
            MaskplanError: as `Plan.lower` does.
            PlanTypeError: if `device` is no device.
            PlanError: if there is no such device here.
        """
        check_plan(plan)
        if not isinstance(target, str):
            check_target(target, "PlanCache.lower")
        check_known(shape, SHAPE, "PlanCache.lower", "leave the rest out")
        lowering = Lowering(
            target=target,
            backward=directions(backward),
            shape=tuple((name, _plain(name, shape[name])) for name in SHAPE if name in shape),
        )
        return self.find(plan, lowering, plan.device if device is None else placed(device))

    @untransformed
    def find(
        self, plan: Plan | TokenTiles, lowering: Lowering, device: torch.device
    ) -> LoweredPlan:
        """The plan lowered so on a device, from the cache or into it.

        Token tiles, which have no digest, are found as the same object.
        """
        name: object = id(plan)
        if self._by == "digest" and isinstance(plan, Plan):
            name = plan.digest
        key = (name, lowering, device)
        writes = _writes(plan)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and self._holds(entry, plan, writes):
                self._hits += 1
                self._entries.move_to_end(key)
                return entry.lowered
            self._misses += 1
            lowered = lowering.of(plan).to(device)
            self._entries[key] = _Entry(plan, writes, lowered)
            self._entries.move_to_end(key)
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
                self._evictions += 1
            return lowered

    def _holds(self, entry: "_Entry", plan: Plan | TokenTiles, writes: tuple[int, ...]) -> bool:
        """Whether what was lowered is what `plan`, found by its key, holds now."""
        if entry.plan is plan:
            return entry.writes == writes
        # Found by its digest. What was lowered may share arrays with its own plan.
        return entry.writes == _writes(entry.plan)

    def clear(self) -> None:
        """Drop every entry; what was counted stays."""
        with self._lock:
            self._entries.clear()

    @property
    def stats(self) -> CacheStats:
        """Hits, misses, evictions and what is held now."""
        with self._lock:
            held = [entry.lowered.packed.tensors for entry in self._entries.values()]
            return CacheStats(
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
                size=len(held),
                nbytes=sum(tensor.nbytes for tensors in held for tensor in tensors),
            )

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"PlanCache(capacity={self._capacity}, by={self._by!r}, {self.stats})"


def _writes(plan: Plan | TokenTiles) -> tuple[int, ...]:
    """How often each array of `plan` was written to in place; 0 of inference tensors."""
    if isinstance(plan, TokenTiles):
        tables = (plan.tile_token_indices, plan.valid_counts, plan.row_bits)
        return writes_to([table for table in tables if table is not None])
    arrays = (plan.pattern_id, plan.row_ptr, plan.col, plan.tile_id, plan.tiles)
    return writes_to([array for array in arrays if array is not None])


def _plain(name: str, value: int | str) -> int | str:
    return value if isinstance(value, str) else integer(value, name)
