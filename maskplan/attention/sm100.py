"""Backend "sm100": our own kernels (`kernels_sm100`) on a B200 or B300.

They are proved in the emulator, see "sm100-emulated", and have not been run on such a GPU yet: so
"auto" prefers fa4, which has. Like fa4's they mask dropped pairs in the scores: a NaN in V reaches
the queries of every listed block.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from maskplan.attention import sm100_backward
from maskplan.attention import sm100_kernels as kernels
from maskplan.attention.call import AttentionCall
from maskplan.attention.metadata import Metadata

NAME = "sm100"
ENGINES = kernels.ENGINES
OPERATOR = True
DTYPES = kernels.DTYPES
# Compute capability -> the architecture its code is compiled for. It has to be exactly this one:
# code for sm_100a runs on no 10.3, nor the other way round.
ARCHITECTURES = {(10, 0): "sm_100a", (10, 3): "sm_103a"}

lowering = kernels.lowering


def supports(asked: Metadata) -> str | None:
    """None, or the reason why this backend cannot make the call."""
    if asked.device.type != "cuda":
        return f"tensors are on {asked.device}, and its kernels are for SM100 GPUs (B200, B300)"
    capability, name, _ = _gpu(_index(asked.device))
    if capability not in ARCHITECTURES:
        return (
            "its kernels are for SM100 GPUs (B200, B300), of compute capability 10.0 or 10.3, and "
            f"{asked.device} is {name}, of {capability[0]}.{capability[1]}"
        )
    return kernels.refused(asked)


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """(out [B, SQ, HQ, DV], lse float32 [B, HQ, SQ]); the first call of a shape compiles."""
    if call.empty:
        return kernels.nothing(call)
    capability, _, processors = _gpu(_index(call.q.device))
    config = kernels.forward_config(call)
    with torch.cuda.device(call.q.device):
        arguments, out, lse = kernels.forward_operands(call, config, ctas=processors)
        kernels.compiled_forward(config, ARCHITECTURES[capability]).on_device(*arguments)
    return out, lse


def backward(
    call: AttentionCall, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shaped and typed as q, k and v; the first call of a shape compiles."""
    if call.empty:
        return torch.zeros_like(call.q), torch.zeros_like(call.k), torch.zeros_like(call.v)
    capability, _, processors = _gpu(_index(call.q.device))

    def launch(build: Any, config: Any, arguments: tuple[Any, ...], _: tuple[str, ...]) -> None:
        kernel = sm100_backward.compiled(build, config, ARCHITECTURES[capability])
        kernel.on_device(*arguments)

    with torch.cuda.device(call.q.device):
        return sm100_backward.gradients(call, out, lse, dout, dlse, ctas=processors, launch=launch)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


@lru_cache
def _gpu(index: int) -> tuple[tuple[int, int], str, int]:
    """(compute capability, name, streaming multiprocessors) of a GPU."""
    found = torch.cuda.get_device_properties(index)
    return (found.major, found.minor), found.name, found.multi_processor_count
