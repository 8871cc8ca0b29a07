"""Which backend makes a call: the list of them, what each says, and the choice."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from maskplan.attention import cpu, fa4, flex, reference, sm100, sm100_emulated
from maskplan.attention.backend import Backend
from maskplan.attention.metadata import LoweredFor, Metadata
from maskplan.errors import PlanError, UnsupportedError, sentence
from maskplan.lower.lowered import LoweredPlan
from maskplan.lower.packing import unpack

# "auto" takes the first of these that supports the call and runs the plan's engine; none is ever
# replaced by another in silence. See NOTE [Backends]. On an SM100 fa4 comes before sm100, which no
# GPU has run yet.
BACKENDS: tuple[Any, ...] = (fa4, sm100, flex, cpu, reference, sm100_emulated)
# Minutes where others take milliseconds: nobody gets it who did not ask for it.
ONLY_BY_NAME = frozenset({sm100_emulated.NAME})


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStatus:
    """What a backend says of a call.

    Attributes:
        name: as `backend=` takes it.
        reason: why it cannot make the call; None if it can.
    """

    name: str
    reason: str | None

    @property
    def usable(self) -> bool:
        """Whether the backend can make the call."""
        return self.reason is None

    def __str__(self) -> str:
        return f"{self.name}: {self.reason or 'usable'}"


class _Anywhere:
    """Stands for the tensors of a packed plan where only the rest is looked at."""

    def __getitem__(self, number: int) -> int:
        return number


def metadata(
    spec: str, dtype: torch.dtype, device: torch.device, heads: int, kv_heads: int, head_dim: int,
    head_dim_v: int, plan_heads: int, layout: str, backward: str, deterministic: bool,
    differentiable: bool,
) -> Metadata:  # fmt: skip
    """The metadata of a call under a packed plan."""
    lowered: LoweredPlan = unpack(_Anywhere(), spec)  # type: ignore[arg-type]
    return Metadata(
        dtype=dtype,
        device=device,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        plan_heads=plan_heads,
        partial=lowered.plan is None or lowered.plan.tile_id is not None,
        layout=layout,
        backward=backward,
        deterministic=deterministic,
        differentiable=differentiable,
        engine=lowered.engine,
        lowered_for=LoweredFor.of(lowered),
    )


def status(backend: Backend, asked: Metadata) -> BackendStatus:
    """What `backend` says of a call."""
    reason = asked.unserved or backend.supports(asked)
    if asked.engine not in {"plan", *backend.ENGINES}:
        reason = f'it runs no plan that is lowered for "{asked.engine}"'
        if asked.engine == "tokens":
            reason += ": pass tiles.to_plan()"
    return BackendStatus(name=backend.NAME, reason=reason)


def named(name: object) -> Any:
    """The backend called `name`.

    Raises:
        PlanError: if there is none.
    """
    for backend in BACKENDS:
        if name == backend.NAME:
            return backend
    choices = ("auto", *(backend.NAME for backend in BACKENDS))
    raise PlanError(
        sentence(
            what="unknown backend",
            where="attention",
            got=repr(name),
            wanted=" or ".join(repr(choice) for choice in choices),
            remedy="pass one of these as backend",
        )
    )


def choose(asked: Metadata, name: str) -> Any:
    """The backend called `name`, or the first that can make the call for "auto".

    Raises:
        PlanError: if there is none of that name.
        UnsupportedError: if it cannot make the call.
    """
    automatic = [backend for backend in BACKENDS if backend.NAME not in ONLY_BY_NAME]
    candidates = automatic if name == "auto" else [named(name)]
    said = [status(backend, asked) for backend in candidates]
    for backend, answer in zip(candidates, said, strict=True):
        if answer.usable:
            return backend
    known = {engine for backend in BACKENDS for engine in backend.ENGINES}
    if asked.engine not in {"plan", *known}:
        raise UnsupportedError(
            sentence(
                what="plan is lowered for another target",
                where="plan",
                got=asked.engine,
                wanted=f"one of {', '.join(sorted(known - {'plan'}))}",
                remedy='pass plan.lower("cpu"), or the Plan itself',
            )
        )
    dtype = str(asked.dtype).removeprefix("torch.")
    raise UnsupportedError(
        sentence(
            what="no backend can make this call" if name == "auto" else "backend cannot",
            where=f"attention(backend={name!r})",
            got=f"{dtype} on {asked.device}, backward={asked.backward!r}",
            wanted=f"a call that it supports ({'; '.join(map(str, said))})",
            remedy="convert the tensors, or choose by maskplan.backends(q, k, v, plan)",
        )
    )


@lru_cache(maxsize=1024)
def _decided(name: str, *facts: Any) -> str:
    chosen: str = choose(metadata(*facts), name).NAME
    return chosen


def decide(name: str, *facts: Any) -> str:
    """The name of the backend that `choose` gives for the arguments of `metadata`.

    A pure function of plain values: answers are kept, and a compiled region takes them for
    constants.
    """
    return _decided(name, *facts)


# What torch.compiler.assume_constant_result does, which would import the whole compiler.
decide._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001
