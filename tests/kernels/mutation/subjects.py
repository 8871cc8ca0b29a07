"""Kernels whose mutants are tried: how each is called, and whether what came out is right."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from kernels_sm100.emulator import GlobalMemory, Launch, emulate
from kernels_sm100.emulator.launch import Report
from kernels_sm100.emulator.mutation import Mutant, Verdict, WrongValues, mutants, try_mutant
from kernels_sm100.launch import CompileCache, compile_kernel

# Races are looked for in each; lazy and random order what luck would hide.
SCHEDULES = (("round_robin", 0), ("lazy", 0), ("random", 1), ("random_eager", 2), ("random", 3))


class NewWarning(WrongValues):
    """The emulator warns of something that it does not warn of in the kernel as it is."""


@dataclass
class Subject:
    """A kernel under mutation.

    Attributes:
        call: poisons the outputs and calls host code, which launches one kernel.
        right: whether the outputs are right.
        strict: whether everything is an error that the emulator can be asked to refuse: kernels of
            others leave out some of it.
        warnings: what the emulator warns of in the kernel as it is; set by `baseline`.
    """

    call: Callable[[Callable[[Launch, GlobalMemory], Any]], Any]
    right: Callable[[], bool]
    strict: bool = True
    warnings: frozenset[str] = frozenset()

    @property
    def options(self) -> dict[str, bool]:
        """Of `emulate`."""
        names = ("strict_tmem_loads", "strict_registers", "strict_exit", "strict_fences")
        return dict.fromkeys(names, self.strict)

    def baseline(self) -> tuple[Launch, Report]:
        """The launch as it is, and what it did."""
        heard = []

        def note(launch: Launch, memory: GlobalMemory) -> None:
            heard.append((launch, emulate(launch, memory, **self.options)))

        self.call(note)
        assert self.right()
        ((launch, report),) = heard
        self.warnings = frozenset(report.warnings)
        return launch, report

    def run(self, ptx: str, schedule: str, seed: int) -> None:
        """Run other PTX in place of the kernel's own, after `baseline`."""

        def mutated(launch: Launch, memory: GlobalMemory) -> None:
            mutant = replace(launch, ptx=ptx)
            report = emulate(mutant, memory, schedule=schedule, seed=seed, **self.options)
            if added := set(report.warnings) - self.warnings:
                raise NewWarning(", ".join(sorted(added)))

        self.call(mutated)
        if not self.right():
            raise WrongValues

    def mutants(self) -> list[Mutant]:
        """A mutant for each synchronising instruction that the launch executes."""
        launch, report = self.baseline()
        return mutants(launch.ptx, launch.kernel, executed=report.lines)

    def verdicts(self) -> list[Verdict]:
        """What became of each mutant."""
        return [try_mutant(mutant, self.run, SCHEDULES) for mutant in self.mutants()]


def table(found: list[Verdict]) -> str:
    """A line a mutant."""
    return "\n".join(
        f"{v.mutant.kind:16} {v.mutant.source:24} {v.killer or 'SURVIVED':20} {v.mutant.text[:60]}"
        for v in found
    )


def integers(shape, seed: int) -> torch.Tensor:
    """Small integers, whose sums are exact in float32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, shape, generator=generator).float()


def ring_subject(cache: CompileCache) -> Subject:
    """The tutorial's ring of two stages, seven tiles."""
    from tests.kernels.tutorial import ring

    program = compile_kernel(ring.build, ring.RingConfig(), cache=cache).host_program
    x, out = integers((50, 128), 0), torch.zeros(128)

    def call(on_launch):
        out.fill_(torch.nan)
        program(x, out, on_launch=on_launch, unwritten=["out"])

    return Subject(call, lambda: torch.equal(out, x.sum(0)))


def gemm_subject(cache: CompileCache, pair: bool = False) -> Subject:
    """The tutorial's product of one CTA, or of a pair; five K tiles through two stages."""
    from tests.kernels.tutorial import gemm, gemm_pair

    module, config = (gemm_pair, gemm_pair.GemmPairConfig()) if pair else (gemm, gemm.GemmConfig())
    program = compile_kernel(module.build, config, cache=cache).host_program
    a = integers((config.m, 5 * config.k), 0).bfloat16()
    b = integers((config.n, 5 * config.k), 1).bfloat16()
    c = torch.zeros(config.m, config.n)

    def call(on_launch):
        c.fill_(torch.nan)
        program(a, b, c, on_launch=on_launch, unwritten=["c"])

    return Subject(call, lambda: torch.equal(c, a.float() @ b.float().T))


def tile_subject(cache: CompileCache) -> Subject:
    """The tutorial's TMA load and store of swizzled tiles."""
    from tests.kernels.tutorial import tma_tiles

    program = compile_kernel(tma_tiles.build, tma_tiles.TileConfig(), cache=cache).host_program
    x = integers((50, 48), 0)
    out, seen = torch.zeros_like(x), torch.zeros_like(x)

    def call(on_launch):
        out.fill_(torch.nan)
        seen.fill_(torch.nan)
        program(x, out, seen, on_launch=on_launch, unwritten=["target", "seen"])

    return Subject(call, lambda: torch.equal(out, x + 1) and torch.equal(seen, x))


def ordered_sum_subject(cache: CompileCache) -> Subject:
    """The tutorial's sum over CTAs, ordered by a semaphore."""
    from tests.kernels.tutorial import ordered_sum

    config = ordered_sum.OrderedSumConfig()
    program = compile_kernel(ordered_sum.build, config, cache=cache).host_program
    x = integers((5, 256), 0) * 10.0 ** integers((5, 1), 1)
    total, semaphore = torch.zeros(256), torch.zeros(1, dtype=torch.int32)
    expected = torch.zeros(256)
    for row in x:
        expected += row

    def call(on_launch):
        total.zero_()
        semaphore.zero_()
        program(x, total, semaphore, on_launch=on_launch)

    return Subject(call, lambda: torch.equal(total, expected) and semaphore.item() == len(x))


def fa4_forward_subject(cache: CompileCache) -> Subject:
    """FA4's block-sparse forward: 4 tiles, one after the other on one CTA, so that rings wrap."""
    from tests.kernels.peers.attention import block_sparse, inputs, reference
    from tests.kernels.peers.fa4 import Case, programs

    case = Case(direction="forward", seqlen=1024, head_dim=128, sparse=True, sms=1)
    (program,) = programs(case, cache)
    given = inputs(case)
    exact, exact_lse, *_ = reference(case, given)
    out, lse = torch.zeros_like(given.q), torch.zeros(1, 1, case.seqlen)

    def call(on_launch):
        out.fill_(torch.nan)
        lse.fill_(torch.nan)
        program(
            given.q, given.k, given.v, out, lse, given.scale, *[None] * 9,
            block_sparse(case, given), (None, None), *[None] * 7, case.seqlen,
            on_launch=on_launch, unwritten=("argument 3", "argument 4"),
        )  # fmt: skip

    def right():
        close = torch.allclose(lse.double(), exact_lse, atol=1e-3, rtol=0)
        return close and torch.allclose(out.double(), exact, atol=0.01, rtol=0)

    return Subject(call, right, strict=False)


def fa4_backward_subject(cache: CompileCache, seqlen: int = 512) -> Subject:
    """The main kernel of FA4's block-sparse backward, D 64: a CTA each 128 keys."""
    from tests.kernels.peers.attention import block_sparse, inputs, reference
    from tests.kernels.peers.fa4 import Case, programs

    case = Case(direction="backward", seqlen=seqlen, head_dim=64, sparse=True)
    preprocess, main, _ = programs(case, cache)
    given = inputs(case)
    q, k, v, grad = given.q, given.k, given.v, given.grad
    out, lse, _, exact_dk, exact_dv = reference(case, given)
    row_sums, lse_log2 = torch.zeros(1, 1, case.seqlen), torch.zeros(1, 1, case.seqlen)
    accumulator = torch.zeros(1, 1, case.seqlen * case.head_dim)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    preprocess(
        out.bfloat16(), grad, row_sums, lse.float(), lse_log2, accumulator, *[None] * 5,
        given.scale, None, None, on_launch=partial(emulate, strict_exit=False),
    )  # fmt: skip
    accumulated: list[torch.Tensor] = []

    def call(on_launch):
        accumulator.zero_()
        dk.fill_(torch.nan)
        dv.fill_(torch.nan)
        main(
            q, k, v, grad, lse_log2, row_sums, accumulator, dk, dv, given.scale, *[None] * 9,
            (None, None), block_sparse(case, given, transposed=True), None, on_launch=on_launch,
        )  # fmt: skip

    def right():
        if not accumulated:  # the first call is that of the kernel as it is
            accumulated.append(accumulator.clone())
        return all(
            torch.allclose(got.double(), wanted.double(), atol=0.02, rtol=0)
            for got, wanted in ((dk, exact_dk), (dv, exact_dv), (accumulator, accumulated[0]))
        )

    return Subject(call, right, strict=False)


def forward_subject(cache: CompileCache) -> Subject:
    """Our forward, D 64, two stages: three items on one CTA, blocks full, of bits, and skipped."""
    import numpy as np

    from kernels_sm100.config import ForwardConfig
    from tests.kernels.forward.run import ForwardKernel, aligned, expected, problem

    kernel = ForwardKernel(ForwardConfig(head_dim=64, head_dim_v=64, stages=2), cache)
    mask = np.ones((1, 1, 768, 512), dtype=bool)
    mask[..., :128, 128:256] = False  # one tile of a pair skips a block
    mask[..., 128:256, ::3] = False  # bits
    mask[..., 256:512, :] = False  # an empty pair of tiles
    mask[..., 512:, 384:] = np.tril(np.ones((256, 128), dtype=bool))
    given = problem(kernel.config, mask, spread=4.0)
    o, lse = expected(given)
    exact = torch.from_numpy(o), torch.from_numpy(lse)
    out = (aligned((1, 768, 1, 64), torch.bfloat16), aligned((1, 1, 768), torch.float32))

    def call(on_launch):
        for tensor in out:
            tensor.fill_(torch.nan)
        kernel.launch(given, on_launch, out=out)

    def right():
        return all(
            torch.allclose(got.double(), wanted, atol=0.02, rtol=0)
            for got, wanted in zip(out, exact, strict=True)
        )

    return Subject(call, right)


SUBJECTS: dict[str, Callable[[CompileCache], Subject]] = {
    "tutorial ring": ring_subject,
    "tutorial product": gemm_subject,
    "tutorial product of a pair": lambda cache: gemm_subject(cache, pair=True),
    "tutorial tiles": tile_subject,
    "tutorial ordered sum": ordered_sum_subject,
    "our forward, D 64, 3 items on 1 CTA": forward_subject,
    "FA4 forward, sparse, 4 tiles on 1 CTA": fa4_forward_subject,
    "FA4 backward, sparse, D 64": fa4_backward_subject,
    "FA4 backward, sparse, D 64, longer lists": partial(fa4_backward_subject, seqlen=1024),
}
