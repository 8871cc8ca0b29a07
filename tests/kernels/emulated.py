"""Runs captured kernels in the emulator, under the schedules that every kernel has to survive."""

from kernels_sm100.emulator import emulate

# Round robin finds nothing that luck hides; lazy and random complete asynchronous work late.
SCHEDULES = (
    ("round_robin", 0), ("lazy", 0), ("random", 1), ("random", 2), ("random_eager", 3),
)  # fmt: skip
SCHEDULE_IDS = [f"{name}-{seed}" for name, seed in SCHEDULES]


def run(compiled, *arguments, schedule=("round_robin", 0), unwritten=(), **options):
    """Call host code of `compiled`; what it launches is emulated. Returns the reports."""
    name, seed = schedule
    reports = []

    def on_launch(launch, memory):
        reports.append(emulate(launch, memory, schedule=name, seed=seed, **options))

    program = getattr(compiled, "host_program", compiled)
    program(*arguments, on_launch=on_launch, unwritten=unwritten)
    return reports
