"""`maskplan verify`: a backend against the reference, on a plan of yours."""

from typing import Annotated

import torch
import typer

import maskplan as mp
from maskplan import io
from maskplan.cli.options import HeadDim, PlanFile
from maskplan.errors import PlanError, sentence

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def verify(
    plan: PlanFile,
    backend: Annotated[
        str, typer.Option(help="auto, cpu, reference, flex, fa4, sm100 or sm100-emulated.")
    ] = "auto",
    head_dim: HeadDim = 64,
    heads: Annotated[
        int | None, typer.Option(help="Query heads; as many as the plan has by default.")
    ] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="KV heads; as many as query heads by default.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(_DTYPES)}; float32, or bfloat16 for backends without it."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where the backend runs: cpu, cuda.")] = "cpu",
    backward: Annotated[
        str, typer.Option(help="auto, loop_q (owns keys) or loop_k (owns queries).")
    ] = "auto",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Ask for equal bits in equal calls.")
    ] = False,
) -> None:
    """Run attention with a plan, forward and backward, and compare with float64.

    Gradients of small plans are also held to differences of attention itself.
    sm100-emulated runs the kernels for SM100 GPUs in an emulator, on any machine,
    for small plans; it needs the extra sm100.
    """
    loaded = io.load(plan)
    if isinstance(loaded, mp.TransposedPlan):
        loaded = loaded.transpose()
    report = mp.verify(
        loaded,
        backend=backend,
        head_dim=head_dim,
        heads=heads,
        kv_heads=kv_heads,
        dtype=None if dtype is None else _dtype(dtype),
        device=_device(device),
        backward=backward,
        deterministic=deterministic,
    )
    print(report)
    report.raise_if_failed()


def _dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise PlanError(
            sentence(
                what="unknown dtype",
                where="--dtype",
                got=repr(name),
                wanted=f"one of {', '.join(_DTYPES)}",
                remedy="name one of these",
            )
        )
    return _DTYPES[name]


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    usable = device is not None and device.type in ("cpu", "cuda")
    if device is None or not usable or (device.type == "cuda" and not torch.cuda.is_available()):
        raise PlanError(
            sentence(
                what="no such device",
                where="--device",
                got=repr(name),
                wanted="cpu, or cuda on a machine that has a GPU",
                remedy="see maskplan doctor",
            )
        )
    return device
