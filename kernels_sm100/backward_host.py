"""The backward kernels as their callers see them: how to compile each, and from which sources.

    config = BackwardConfig(direction="loop_q", head_dim=128, group=8)
    prepare = compile_kernel(build_preprocess, config, sources=BACKWARD_SOURCES)
    backward = compile_kernel(build_backward, config, sources=BACKWARD_SOURCES)
    finish = compile_kernel(build_postprocess, config, sources=BACKWARD_SOURCES)

Arguments are documented where the kernels are; shapes and values are trusted. Importing this module
imports neither cutlass nor torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels_sm100.backward_config import BackwardConfig

_HERE = Path(__file__).parent
BACKWARD_SOURCES = tuple(
    _HERE / f"{name}.py"
    for name in (
        "backward",
        "backward_config",
        "backward_loopk",
        "backward_loopq",
        "barriers",
        "bulk",
        "columns",
        "config",
        "mask",
        "mma",
        "postprocess",
        "preprocess",
        "softmax",
        "walk",
    )
)


def build_preprocess(config: BackwardConfig) -> tuple[Any, Mapping[str, Any]]:
    """(kernel, fake arguments by name), for `launch.compile_kernel`; imports cutlass."""
    from kernels_sm100.preprocess import Preprocess, fake_arguments

    return Preprocess(config), fake_arguments(config)


def build_postprocess(config: BackwardConfig) -> tuple[Any, Mapping[str, Any]]:
    """(kernel, fake arguments by name), for `launch.compile_kernel`; imports cutlass."""
    from kernels_sm100.postprocess import Postprocess, fake_arguments

    return Postprocess(config), fake_arguments(config)


def build_backward(config: BackwardConfig) -> tuple[Any, Mapping[str, Any]]:
    """(kernel of the configured direction, fake arguments by name); imports cutlass."""
    if config.direction == "loop_q":
        from kernels_sm100.backward_loopq import LoopQ, fake_arguments

        return LoopQ(config), fake_arguments(config)
    from kernels_sm100.backward_loopk import LoopK
    from kernels_sm100.backward_loopk import fake_arguments as loop_k_arguments

    return LoopK(config), loop_k_arguments(config)
