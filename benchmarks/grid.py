"""Rows of a grid, a line of JSON a case: kept as they come, so that a run can be resumed."""

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

Rows = dict[str, dict[str, Any]]


def identity(case: Any) -> str:
    """What tells the row of a case, a dataclass, from others."""
    return json.dumps(asdict(case))


def read(path: Path) -> Rows:
    """Rows that a file holds, by case; a line that was cut off while it was written is none."""
    if not path.exists():
        return {}
    rows = (json.loads(line) for line in path.read_text().splitlines() if line.endswith("}"))
    return {json.dumps(row["case"]): row for row in rows}


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that every grid takes."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("path", type=Path)
    found.add_argument("--summary", action="store_true", help="print the table, run nothing")
    return found


def fill(
    arguments: argparse.Namespace, cases: Iterable[Any], run: Callable[[Any], dict[str, Any]]
) -> Rows:
    """Run the cases that the file lacks, in order, and give the rows of all that it then holds."""
    rows = read(arguments.path)
    wanted = {identity(case): case for case in cases}
    if not arguments.summary:
        arguments.path.parent.mkdir(parents=True, exist_ok=True)
        with arguments.path.open("a") as file:
            for name, case in wanted.items():
                if name not in rows:
                    rows[name] = {"case": asdict(case)} | run(case)
                    print(json.dumps(rows[name]), file=file, flush=True)
                    print(f"{name}: {rows[name]['used']} {rows[name]['error'] or ''}", flush=True)
    return {name: row for name, row in rows.items() if name in wanted}


def tail(rows: Rows) -> None:
    """Seconds of all rows, and every failure."""
    print(f"\n{sum(row['seconds'] for row in rows.values()):.0f} seconds, compilations among them")
    for row in rows.values():
        if row["error"] is not None:
            print(row["case"], row["error"])


def worst(rows: Iterable[dict[str, Any]]) -> str:
    """Columns of a table: how many rows, the largest part of the budget used, how many failed."""
    rows = list(rows)
    used = max((row["used"] for row in rows if row["used"] is not None), default=0.0)
    return f"{len(rows)} | {used:.2f} | {sum(row['error'] is not None for row in rows)}"
