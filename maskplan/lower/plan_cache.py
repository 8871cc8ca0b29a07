"""`PlanCache`: lowered plans kept for the next call, in an object that the caller holds."""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from threading import RLock

import torch

from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer
from maskplan.lower.lowered import LoweredPlan
from maskplan.lower.target import Target
from maskplan.plan import Plan

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

    def of(self, plan: Plan) -> LoweredPlan:
        """`plan`, lowered so."""
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


class PlanCache:
    """The last `capacity` lowered plans, found by plan, target and device.

    A plan is a frozen value and remembers nothing, so a loop that calls `attention` with a Plan
    would lower it each time. This is where to keep what was made: pass it as
    `attention(..., cache=)`, or ask it for a plan by `lower`. What it holds lives as long as it.
    The least recently used entry makes room for a new one. Threads may share it.

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
        self._entries: OrderedDict[tuple[object, ...], tuple[Plan, LoweredPlan]] = OrderedDict()
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
        """
        lowering = Lowering(
            target=target, backward=tuple(backward), shape=tuple(sorted(shape.items()))
        )
        return self.find(plan, lowering, plan.device if device is None else torch.device(device))

    def find(self, plan: Plan, lowering: Lowering, device: torch.device) -> LoweredPlan:
        """The plan lowered so on a device, from the cache or into it."""
        name: object = id(plan) if self._by == "identity" else plan.digest
        key = (name, lowering, device)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._hits += 1
                self._entries.move_to_end(key)
                return entry[1]
            self._misses += 1
            lowered = lowering.of(plan).to(device)
            self._entries[key] = (plan, lowered)
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
                self._evictions += 1
            return lowered

    def clear(self) -> None:
        """Drop every entry; what was counted stays."""
        with self._lock:
            self._entries.clear()

    @property
    def stats(self) -> CacheStats:
        """Hits, misses, evictions and what is held now."""
        with self._lock:
            held = [lowered.packed.tensors for _, lowered in self._entries.values()]
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
