"""`maskplan bench`: what planning and attention cost on this machine, beside others' engines."""

from pathlib import Path
from typing import Annotated

import typer

from maskplan.cli.output import free


def bench(
    rows: Annotated[
        list[str] | None, typer.Option(help="Only rows whose name has this in it; repeatable.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="Start no row after these; run again to go on.")
    ] = 540.0,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="JSON lines: rows in it are not measured again.")
    ] = Path("maskplan-bench.jsonl"),
    runs: Annotated[int, typer.Option(min=1, help="Interleaved runs, of which the median.")] = 9,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    only_list: Annotated[
        bool, typer.Option("--list", help="Only name the rows, and which are done.")
    ] = False,
) -> None:
    """Measure planning and attention beside SDPA, FlexAttention and FA4; print ratios first."""
    from maskplan.bench import Journal, Machine, run
    from maskplan.bench.cases import cases_for, clock_for
    from maskplan.bench.runner import named
    from maskplan.bench.table import tables

    machine = Machine.here(device)
    journal = Journal(free(out, force=True), machine)  # rows are added to what is there
    cases = cases_for(machine.device)
    if only_list:
        for case in named(cases, rows or ()):
            print(f"{'done' if journal.has(case.name) else '    '}  {case.name:<40} {case.title}")
        return
    left = run(
        cases, journal, clock_for(machine.device), rows=rows or (), seconds=seconds, runs=runs
    )
    print(f"\n{tables(machine, journal.rows())}")
    if left:
        print(f"\nrows not measured: {len(left)}; the same command goes on with them")
