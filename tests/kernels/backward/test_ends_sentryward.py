"""A verifier by others proves preprocess and postprocess free of races, in every schedule.

FlashAttention-4's preprocess has two CTAs write one element.
"""

import importlib.util

import pytest
import torch

from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.backward_host import BACKWARD_SOURCES, build_postprocess, build_preprocess
from kernels_sm100.launch import compile_kernel
from kernels_sm100.verify import Captured, verify
from tests.kernels.forward.run import aligned

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sentryward") is None,
    reason="needs SentryWard (extra verify)",
)

ENDS = BackwardConfig(head_dim=64, dtype="float16")


def preprocess_arguments(seqlen):
    """Of two heads, with NaN where it writes."""
    o, do = (aligned((1, seqlen, 2, 64), torch.float16, 1.0) for _ in range(2))
    lse, dlse = (aligned((1, 2, seqlen), torch.float32, 0.0) for _ in range(2))
    rows = [aligned((1, 2, -(-seqlen // 128) * 128), torch.float32) for _ in range(2)]
    return (o, do, lse, dlse, *rows, *(aligned((n,), torch.float32) for n in (5000, 4)))


def postprocess_arguments(seqlen):
    sums = aligned((1, 2, -(-seqlen // 128), 16, 128, 4), torch.float32, 1.0)
    return sums, aligned((1, seqlen, 2, 64), torch.float16), 0.5


@pytest.mark.parametrize("seqlen", [1, 128, 300])
@pytest.mark.parametrize(
    ("build", "arguments"),
    [(build_preprocess, preprocess_arguments), (build_postprocess, postprocess_arguments)],
    ids=["preprocess", "postprocess"],
)
def test_the_ends_are_proved_race_free(compile_cache, build, arguments, seqlen):
    """Every element that they write is written by one thread."""
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    kernel, seen = compile_kernel(build, ENDS, sources=BACKWARD_SOURCES, cache=compile_cache), []
    kernel.host_program(
        *arguments(seqlen),
        on_launch=lambda launch, memory: seen.append(Captured.of(launch, memory)),
    )

    found = verify(seen[0], tables={})

    assert (found.result, found.warnings) == ("race_free", 0), found.diagnostics[:2]
