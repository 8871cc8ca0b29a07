"""Backend "sm100-emulated": the kernels of "sm100", executed on a CPU by the emulator of their PTX.

For small shapes on any machine, to see that a plan is right on kernels for a GPU that is not there:
the host code, lists and PTX are those that a B200 gets, and every access is checked for races. It
is thousands of times slower than the CPU backend, so "auto" never takes it. A fault that the
emulator finds is an error of `kernels_sm100.errors`, which names the instruction.
"""

from typing import Any

import torch
from torch import Tensor

from maskplan.attention import sm100_backward, sm100_gathered
from maskplan.attention import sm100_kernels as kernels
from maskplan.attention.call import AttentionCall
from maskplan.attention.metadata import Metadata
from maskplan.errors import UnsupportedError, sentence

NAME = "sm100-emulated"
ENGINES = kernels.ENGINES
OPERATOR = True
DTYPES = kernels.DTYPES
ARCHITECTURE = "sm_100a"
# The largest call: products of a 128-row Q tile and a 128-key block, plus Q tiles. Each takes 10 to
# 20 ms on one core, so this is about a minute. Raise it here for longer runs.
MAX_STEPS = 4096
_SECONDS_A_STEP = 0.015
# A step of a backward is as long as so many of the forward.
_BACKWARD_STEPS = 3
_CTAS = 2  # few, so that a CTA works on several tiles and its rings wrap

lowering = kernels.lowering


def supports(asked: Metadata) -> str | None:
    """None, or the reason why this backend cannot make the call."""
    if asked.device.type != "cpu":
        return f"tensors are on {asked.device}, and the emulator works on the CPU"
    return kernels.refused(asked)


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """(out [B, SQ, HQ, DV], lse float32 [B, HQ, SQ]).

    Raises:
        UnsupportedError: for a call of more than `MAX_STEPS`.
        EmulatorError: of kernels_sm100, for a fault of the kernel.
    """
    if call.empty:
        return kernels.nothing(call)
    config = kernels.forward_config(call)
    _check_size(steps(call, config.cta_rows, config.q_tiles, config.rows_per_token))
    from kernels_sm100.emulator import emulate

    arguments, out, lse = kernels.forward_operands(call, config, ctas=_CTAS)

    def on_launch(launch: Any, memory: Any) -> None:
        emulate(launch, memory)

    compiled = kernels.compiled_forward(config, ARCHITECTURE)
    compiled.host_program(*arguments, on_launch=on_launch, unwritten=("o", "lse"))
    return out, lse


def backward(
    call: AttentionCall, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shaped and typed as q, k and v.

    Raises:
        UnsupportedError: for a call of more than `MAX_STEPS`; one of a backward counts three.
        EmulatorError: of kernels_sm100, for a fault of a kernel.
    """
    if call.empty:
        return torch.zeros_like(call.q), torch.zeros_like(call.k), torch.zeros_like(call.v)
    _check_size(_BACKWARD_STEPS * sm100_backward.steps(call))
    from kernels_sm100.emulator import emulate

    def on_launch(launch: Any, memory: Any) -> None:
        emulate(launch, memory)

    def launch(
        build: Any, config: Any, arguments: tuple[Any, ...], unwritten: tuple[str, ...]
    ) -> None:
        compiled = sm100_backward.compiled(build, config, ARCHITECTURE)
        compiled.host_program(*arguments, on_launch=on_launch, unwritten=unwritten)

    return sm100_backward.gradients(call, out, lse, dout, dlse, ctas=_CTAS, launch=launch)


def steps(call: AttentionCall, cta_rows: int, q_tiles: int, rows_per_token: int) -> int:
    """Products of a Q tile and a KV block that a call takes at most, plus its Q tiles.

    Args:
        call: under a plan lowered for sm100.
        cta_rows: packed rows of a CTA.
        q_tiles: Q tiles of a CTA.
        rows_per_token: packed rows of a token.
    """
    if call.lowered.gathered is not None:
        return sm100_gathered.steps(call)
    walk = kernels.forward_walk(call.lowered)
    pattern = call.lowered.pattern_id.long()
    entries = walk.row_ptr.diff().view(-1, walk.rows).sum(1)[pattern].sum()
    repeats = call.batch * call.heads // rows_per_token // pattern.numel()
    ctas_a_row = walk.parts * walk.part_tokens * rows_per_token // cta_rows
    items = pattern.numel() * walk.rows
    return int(entries + items) * repeats * ctas_a_row * q_tiles


def _check_size(count: int) -> None:
    if count > MAX_STEPS:
        raise UnsupportedError(
            sentence(
                what="call is too large to emulate",
                where=f"attention(backend={NAME!r})",
                got=f"{count:,} steps of 128 x 128, about {_minutes(count)}",
                wanted=f"at most {MAX_STEPS:,}, about {_minutes(MAX_STEPS)}",
                # `maskplan.attention` is the function, so no longer name leads here.
                remedy="crop the plan or take fewer heads, or set sm100_emulated.MAX_STEPS, "
                "imported by 'from maskplan.attention import sm100_emulated'",
            )
        )


def _minutes(count: int) -> str:
    minutes = round(count * _SECONDS_A_STEP / 60)
    return f"{minutes:,} minutes" if minutes > 1 else "a minute"
