"""What the checks and the choice of a backend go by, so that each is made once.

NOTE [Settled calls]: a model makes the same call thousands of times, with other numbers in tensors
of the same shapes. Whether arguments fit each other and which backend makes the call are functions
of a few plain values, the signature; so a signature that went through once is remembered with its
backend, and the next call of it costs a look into a dict instead of some forty comparisons. Nothing
that a tensor holds is part of it, and no tensor is kept. A call that has no signature (under a
compiler, a mode, a transform or a trace, of tensor subclasses, on "meta", of a Plan) is checked
each time.
"""

import torch
from torch import Tensor
from torch.nn import Parameter

from maskplan.attention.dispatch_keys import unobserved
from maskplan.lower.lowered import LoweredPlan

Signature = tuple[object, ...]

_PLAIN = (Tensor, Parameter)
_ROOM = 1024  # signatures remembered


def plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether these are tensors as torch makes them, and nothing looks at what is called.

    Nobody can tell then whether an operator of torch was called, or what it would have done. Of
    tensors on "meta" there is nothing but what the operator says of shapes.
    """
    if torch.compiler.is_compiling() or (isinstance(q, Tensor) and q.is_meta):
        return False
    return type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN and unobserved()


def signature_of(
    q: Tensor, k: Tensor, v: Tensor, plan: object, layout: str, backend: str, backward: str,
    deterministic: bool,
) -> Signature | None:  # fmt: skip
    """All that `attention` checks and chooses by; None where a call has to be looked at."""
    if not plain(q, k, v) or type(plan) is not LoweredPlan:
        return None
    if not (type(layout) is type(backend) is type(backward) is str):  # others may have no hash
        return None
    pattern = plan.pattern_id
    return (
        plan.packed.spec, pattern.shape, pattern.device, q.shape, k.shape, v.shape, q.dtype,
        k.dtype, v.dtype, q.device, k.device, v.device, q.layout, k.layout, v.layout, layout,
        backend, backward, deterministic,
        torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad),
    )  # fmt: skip


class SettledCalls:
    """Names of backends by signature; the oldest are forgotten."""

    def __init__(self) -> None:
        self._names: dict[Signature, str] = {}

    def get(self, signature: Signature) -> str | None:
        """The backend of a call that went through, or None."""
        return self._names.get(signature)

    def add(self, signature: Signature, name: str) -> None:
        """Remember that a call of this signature was right, and which backend makes it."""
        while len(self._names) >= _ROOM:
            # Another thread may have been first; pop then finds nothing, which is as well.
            self._names.pop(next(iter(self._names)), None)
        self._names[signature] = name

    def __len__(self) -> int:
        return len(self._names)
