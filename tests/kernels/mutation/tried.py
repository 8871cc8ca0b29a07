"""Mutants of a compiled tutorial kernel, tried on given arguments."""

from collections.abc import Callable
from dataclasses import replace

from kernels_sm100.emulator import emulate
from kernels_sm100.emulator.mutation import Mutant, Verdict, WrongValues, mutants, try_mutant

# Races are looked for in each; lazy and random order what luck would hide.
SCHEDULES = (("round_robin", 0), ("lazy", 0), ("random", 1), ("random_eager", 2))


def verdicts(program, reset: Callable[[], tuple], right: Callable[[], bool], **options):
    """[Verdict] of every executed mutant of the one kernel that `program` launches.

    Args:
        program: host program.
        reset: gives the arguments, outputs poisoned.
        right: whether the outputs are right.
        options: of the call, as `unwritten`.
    """
    heard = []

    def note(launch, memory):
        heard.append((launch, emulate(launch, memory, strict_tmem_loads=True)))

    program(*reset(), on_launch=note, **options)
    assert right()
    ((launch, report),) = heard

    def run(ptx, schedule, seed):
        program(
            *reset(),
            on_launch=lambda launch, memory: emulate(
                replace(launch, ptx=ptx),
                memory,
                schedule=schedule,
                seed=seed,
                strict_tmem_loads=True,
            ),
            **options,
        )
        if not right():
            raise WrongValues

    found: list[Mutant] = mutants(launch.ptx, launch.kernel, executed=report.lines)
    return [try_mutant(mutant, run, SCHEDULES) for mutant in found]


def table(found: list[Verdict]) -> str:
    """A line a mutant."""
    return "\n".join(
        f"{v.mutant.kind:16} {v.mutant.source:24} {v.killer or 'SURVIVED':20} {v.mutant.text[:60]}"
        for v in found
    )
