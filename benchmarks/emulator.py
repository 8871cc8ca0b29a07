"""What the emulator finds and how fast it is: mutants of kernels, and timed launches.

Each result is a line of JSON, written as it comes; what the file already holds is not run again.

    python -m benchmarks.emulator build/emulator.jsonl                 # all
    python -m benchmarks.emulator build/emulator.jsonl --only tutorial # subjects named so
    python -m benchmarks.emulator build/emulator.jsonl --summary       # tables of what is there

It needs the extras sm100 and peers; run it in the root of a checkout.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernels_sm100.emulator.grid import program
from kernels_sm100.emulator.mutation import try_mutant
from kernels_sm100.emulator.parser import parse
from kernels_sm100.launch import CompileCache
from tests.kernels.mutation.subjects import SCHEDULES, SUBJECTS, Subject

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """Rows of a file; a last line that was cut off while it was written does not count."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def identity(row: Row) -> tuple[Any, ...]:
    """What tells a row from others."""
    return tuple(
        row.get(name) for name in ("what", "subject", "kernel", "line", "text", "schedule")
    )


def forget() -> None:
    """Drop what the emulator keeps of programs that it has run."""
    program.cache_clear()
    parse.cache_clear()


def timed(name: str, subject: Subject) -> Iterator[Row]:
    """Seconds and instructions of a launch under each schedule, code generation done before."""
    from kernels_sm100.emulator import emulate

    launch, _ = subject.baseline()
    for schedule, seed in SCHEDULES[:4]:
        for races in (True, False):
            reports = []

            def on_launch(launch, memory, *, options=(schedule, seed, races), reports=reports):
                schedule, seed, races = options
                report = emulate(
                    launch, memory, schedule=schedule, seed=seed, races=races, strict_exit=False
                )
                reports.append(report)

            subject.call(on_launch)
            (report,) = reports
            yield {
                "what": "timing", "subject": name, "kernel": launch.kernel[-60:], "line": races,
                "schedule": schedule, "seconds": round(report.seconds, 3), "races": races,
                "instructions": report.instructions, "ctas": report.ctas,
            }  # fmt: skip


def mutated(name: str, subject: Subject, done: set[tuple[Any, ...]]) -> Iterator[Row]:
    """The fate of each mutant."""
    launch, _ = subject.baseline()
    for mutant in subject.mutants():
        row = {
            "what": "mutant", "subject": name, "kernel": launch.kernel[-60:], "line": mutant.line,
            "text": mutant.text[:100], "kind": mutant.kind, "source": mutant.source,
        }  # fmt: skip
        if identity(row) in done:
            continue
        started = time.perf_counter()
        verdict = try_mutant(mutant, subject.run, SCHEDULES)
        forget()  # each mutant is a program of its own
        yield row | {
            "killer": verdict.killer,
            "by": "/".join(map(str, list(verdict.killers)[-1])) if verdict.killed else None,
            "message": verdict.message[:300],
            "seconds": round(time.perf_counter() - started, 2),
        }


def summary(rows: list[Row]) -> None:
    """Markdown tables of kill rates and speeds; the survivors by name."""
    mutants = [row for row in rows if row["what"] == "mutant"]
    for name in dict.fromkeys(row["subject"] for row in mutants):
        print(f"\n**{name}**\n\n| dropped | killed | by |\n| --- | --- | --- |")
        mine = [row for row in mutants if row["subject"] == name]
        for kind in dict.fromkeys(row["kind"] for row in mine):
            these = [row for row in mine if row["kind"] == kind]
            by = Counter(row["killer"] for row in these if row["killer"])
            killed = ", ".join(f"{error} {count}" for error, count in by.most_common())
            print(f"| {kind} | {sum(by.values())} of {len(these)} | {killed} |")
        for row in mine:
            if row["killer"] is None:
                print(f"survived: {row['kind']} at {row['source']}: {row['text'][:70]}")
    print("\n| launch | schedule | races | warp-instructions | s | thousand/s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        if row["what"] == "timing":
            rate = row["instructions"] / row["seconds"] / 1e3 if row["seconds"] else 0
            print(
                f"| {row['subject']} | {row['schedule']} | {'on' if row['races'] else 'off'} |"
                f" {row['instructions']:,} | {row['seconds']} | {rate:.0f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--only", default="", help="subjects whose name contains this")
    parser.add_argument("--summary", action="store_true", help="print tables, run nothing")
    arguments = parser.parse_args()
    rows = read(arguments.path)
    if arguments.summary:
        summary(rows)
        return
    done = {identity(row) for row in rows}
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    cache = CompileCache()
    with arguments.path.open("a") as file:
        for name, make in SUBJECTS.items():
            if arguments.only not in name:
                continue
            subject = make(cache)
            for results in (timed(name, subject), mutated(name, subject, done)):
                for row in results:
                    if identity(row) not in done:
                        print(json.dumps(row), file=file, flush=True)
                        print(f"{name}: {row.get('text', row.get('schedule'))}", flush=True)
    summary(read(arguments.path))


if __name__ == "__main__":
    main()
