"""What a backend is: a module (or any object) of one of the two shapes below.

NOTE [Backends]: `attention` checks a call, asks `supports` of each backend in the order of
`choice.BACKENDS` about the call's `Metadata`, lowers a Plan as the chosen backend's `lowering`
says, and runs it. There are two kinds.

- An `OperatorBackend` is a pair of functions, forward and backward, on tensors that carry no graph.
  The registered operator `maskplan::attention` calls them, so that autograd, torch.compile,
  checkpointing and CUDA graphs see one node and its backward whichever backend it is.
- A `TracedBackend` is made of torch operations that autograd and the compiler understand by
  themselves (FlexAttention is one). It is called as it is, so that it may be fused.

To add one: write the module, and put it into `BACKENDS`.
"""

from typing import Protocol

from torch import Tensor

from maskplan.attention.call import AttentionCall
from maskplan.attention.metadata import Metadata
from maskplan.lower.plan_cache import Lowering


class Backend(Protocol):
    """What both kinds have.

    Attributes:
        NAME: as `backend=` takes it.
        ENGINES: `LoweredPlan.engine` of the plans it runs; with "plan" among them, a Plan too.
        OPERATOR: True of an `OperatorBackend`, False of a `TracedBackend`.
    """

    NAME: str
    ENGINES: tuple[str, ...]
    OPERATOR: bool

    def supports(self, asked: Metadata, /) -> str | None:
        """None, or the reason why this backend cannot make the call, in words that follow "it".

        Decided from `asked` and from what is installed on the machine, for good: answers are kept,
        and a compiled region holds them as constants. Heavy packages are looked for, not imported.
        `asked.engine` need not be looked at.
        """
        ...

    def lowering(self, asked: Metadata, /) -> Lowering:
        """How a Plan is lowered for a call.

        A function of what lists depend on alone (heads, head dims, device, whether a backward may
        come), so that calls that can share lists find them in a `PlanCache`. A backend that runs
        Plans as they are is asked for the sake of a cache alone.
        """
        ...


class OperatorBackend(Backend, Protocol):
    """Forward and backward, called by the operator. No input requires a gradient, no mode is on.

    Results may lie in memory in any way; they are copied if `AttentionCall.new` lays them out
    otherwise. Nothing may synchronise with a GPU, and every launch goes to the current stream.
    """

    def forward(self, call: AttentionCall, /) -> tuple[Tensor, Tensor]:
        """(out [B, SQ, HQ, DV] in the dtype of q, lse [B, HQ, SQ], natural log).

        lse is float64 for float64 inputs, else float32. Queries without keys have out 0, lse -inf.
        """
        ...

    def backward(
        self, call: AttentionCall, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None, /
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(dq, dk, dv), shaped and typed as q, k and v.

        Args:
            call: equal to that of the forward.
            out: what the forward gave.
            lse: likewise.
            dout: [B, SQ, HQ, DV], any strides, broadcast ones too.
            dlse: [B, HQ, SQ] likewise, or None for zeros.
        """
        ...


class TracedBackend(Backend, Protocol):
    """One differentiable function, called by `attention` itself, in a compiled region too."""

    def attend(self, call: AttentionCall, /) -> tuple[Tensor, Tensor | None]:
        """(out, lse) as in `OperatorBackend.forward`, with a graph where inputs require one.

        lse may be None where `call.lse` says that it is not wanted.

        In a compiled region it is traced: it may use what Dynamo understands, and reads
        `call.lowered` by its fields.
        """
        ...
