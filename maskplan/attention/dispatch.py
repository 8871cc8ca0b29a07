"""`attention`: the one way in. It checks the call, chooses the backend and runs it."""

from dataclasses import dataclass
from types import ModuleType
from typing import Literal, overload

from torch import Tensor

from maskplan.attention import cpu, reference
from maskplan.attention.call import AttentionCall, make_call
from maskplan.attention.differentiable import run
from maskplan.errors import PlanError, UnsupportedError, sentence
from maskplan.lower.lowered import LoweredPlan
from maskplan.plan import Plan

# A backend is a module with NAME, supports(call), forward(call) and backward(call, ...). "auto"
# takes the first of these that supports the call; none is ever replaced by another in silence.
BACKENDS: tuple[ModuleType, ...] = (cpu, reference)


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


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan | LoweredPlan,
    *,
    scale: float | None = None,
    layout: str = "bshd",
    backend: str = "auto",
    backward: str = "auto",
    deterministic: bool = False,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan | LoweredPlan,
    *,
    scale: float | None = None,
    layout: str = "bshd",
    backend: str = "auto",
    backward: str = "auto",
    deterministic: bool = False,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan | LoweredPlan,
    *,
    scale: float | None = None,
    layout: str = "bshd",
    backend: str = "auto",
    backward: str = "auto",
    deterministic: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention over the pairs that `plan` keeps; differentiable in q, k and v.

    A query that sees no key gives zeros, with lse -inf and gradients 0. What a query does not
    select never reaches it, NaN and infinity included.

    Args:
        q: [B, SQ, HQ, D] of float32, bfloat16, float16 or float64; any strides.
        k: [B, SK, HK, D], HQ a multiple of HK; query head h reads KV head h // (HQ / HK).
        v: [B, SK, HK, DV].
        plan: for these lengths, with batch 1 or B and heads 1, HK or HQ; or what `plan.lower`
            made of it for target "cpu".
        scale: factor of the scores; None for 1 / sqrt(D).
        layout: "bshd", as written here, or "bhsd", with heads before tokens in q, k, v and out.
        backend: "auto", "cpu" or "reference". "auto" takes the first that supports the call in the
            order cpu, reference, from shapes, dtypes and devices alone; `backends` says why.
        backward: which side owns the loop of the cpu backward: "loop_q" owns keys and streams
            queries, "loop_k" owns queries and streams keys, "auto" is loop_k for key blocks of a
            few tokens and loop_q otherwise.
        deterministic: equal calls give equal bits. Both backends always do, for one number of
            torch threads.
        return_lse: return (out, lse), with lse float32 [B, HQ, SQ] in natural log, differentiable.

    Returns:
        out [B, SQ, HQ, DV], or [B, HQ, SQ, DV] with layout "bhsd", in the dtype of q.

    Raises:
        PlanTypeError: on a wrong type, dtype or rank, a TransposedPlan for one.
        PlanError: on shapes, lengths, heads or devices that do not fit each other, or an unknown
            layout, backend or backward.
        UnsupportedError: if the backend cannot make the call, or by a double backward.
    """
    call = make_call(
        q, k, v, as_plan(plan), scale=scale, layout=layout, backward=backward,
        deterministic=deterministic,
    )  # fmt: skip
    out, lse = run(choose(call, backend), call)
    if layout == "bhsd":
        out = out.transpose(1, 2)
    return (out, lse) if return_lse else out


def backends(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan | LoweredPlan,
    *,
    layout: str = "bshd",
    backward: str = "auto",
    deterministic: bool = False,
) -> tuple[BackendStatus, ...]:
    """Every backend, in the order of "auto": usable for this call, or the reason why not.

    Arguments and errors as in `attention`.
    """
    call = make_call(
        q, k, v, as_plan(plan), scale=None, layout=layout, backward=backward,
        deterministic=deterministic,
    )  # fmt: skip
    return tuple(status(backend, call) for backend in BACKENDS)


def status(backend: ModuleType, call: AttentionCall) -> BackendStatus:
    """What `backend` says of `call`."""
    return BackendStatus(name=backend.NAME, reason=backend.supports(call))


def choose(call: AttentionCall, name: str) -> ModuleType:
    """The backend called `name`, or the first that supports `call` for "auto".

    Raises:
        PlanError: if there is none of that name.
        UnsupportedError: if it cannot make the call.
    """
    named = {backend.NAME: backend for backend in BACKENDS}
    if name != "auto" and name not in named:
        raise PlanError(
            sentence(
                what="unknown backend",
                where="attention",
                got=repr(name),
                wanted=" or ".join(repr(choice) for choice in ("auto", *named)),
                remedy="pass one of these as backend",
            )
        )
    candidates = BACKENDS if name == "auto" else (named[name],)
    for backend in candidates:
        if backend.supports(call) is None:
            return backend
    reasons = "; ".join(str(status(backend, call)) for backend in candidates)
    dtype, device = str(call.q.dtype).removeprefix("torch."), call.q.device
    raise UnsupportedError(
        sentence(
            what="no backend can make this call" if name == "auto" else "backend cannot",
            where=f"attention(backend={name!r})",
            got=f"{dtype} on {device}, backward={call.backward!r}",
            wanted=f"a call that it supports ({reasons})",
            remedy="convert the tensors, or choose by maskplan.backends(q, k, v, plan)",
        )
    )


def as_plan(plan: object) -> object:
    """A `LoweredPlan` for the CPU as the `Plan` it was made of; anything else as it is.

    Raises:
        UnsupportedError: if it was lowered for another target.
    """
    if not isinstance(plan, LoweredPlan):
        return plan
    if plan.target.arch != "cpu":
        raise UnsupportedError(
            sentence(
                what="plan is lowered for another target",
                where="plan",
                got=str(plan.target),
                wanted='target "cpu", which the backends here run on',
                remedy='pass plan.lower("cpu"), or the Plan itself',
            )
        )
    return Plan(
        geometry=plan.geometry,
        pattern_id=plan.pattern_id,
        row_ptr=plan.forward.row_ptr,
        col=plan.forward.col,
        tile_id=plan.forward.tile_id[:, 0].contiguous(),
        tiles=plan.forward.tiles,
    )
