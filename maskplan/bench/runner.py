"""Running cases one after another, until they or the seconds are over."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from maskplan.bench.case import Case, Figure, Missing, Prepared, Work
from maskplan.bench.clock import Clock, Times, interleaved
from maskplan.bench.journal import Journal, Row
from maskplan.errors import PlanError, sentence

RUNS = 9
CASE_SECONDS = 20.0  # of timing; preparing and compiling come on top


def run(
    cases: Iterable[Case],
    journal: Journal,
    clock: Clock,
    *,
    rows: Sequence[str] = (),
    seconds: float = float("inf"),
    runs: int = RUNS,
    say: Callable[[str], object] = print,
    now: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Measure cases in order and append a row of each to the journal.

    Cases that have a row there are passed over. A case whose first work cannot run gets no row.

    Args:
        cases: what may be measured, the most important first.
        journal: where rows are, and go.
        clock: of works whose case has no clock of its own.
        rows: parts of names; a case is run if one of them is in its name. Empty for all.
        seconds: no case is started after these.
        runs: of each work.
        say: is given a line a case.
        now: a clock in seconds.

    Raises:
        PlanError: if one of `rows` is in no name.

    Returns:
        Names of cases that were wanted and have no row, for lack of time or for a failure.
    """
    until = now() + seconds
    left = []
    for case in named(cases, rows):
        if journal.has(case.name):
            continue
        if now() >= until:
            left.append(case.name)
            continue
        started = now()
        row = measured(case, clock, runs=runs, seconds=min(CASE_SECONDS, until - now()))
        if not row["milliseconds"]:
            left.append(case.name)
            say(f"{case.name}: not measured: {'; '.join(row['left_out'].values())}")
            continue
        journal.add(row)
        say(f"{case.name}: {_told(row)}  [{now() - started:.0f} s]")
    return left


def named(cases: Iterable[Case], rows: Sequence[str]) -> list[Case]:
    """The cases that have one of `rows` in their names; all for none.

    Raises:
        PlanError: if one of `rows` is in no name.
    """
    cases = list(cases)
    for part in rows:
        _check_row(part, cases)
    return [case for case in cases if not rows or any(part in case.name for part in rows)]


def _check_row(part: str, cases: Sequence[Case]) -> None:
    if any(part in case.name for case in cases):
        return
    near = get_close_matches(part, [case.name for case in cases], n=3, cutoff=0.0)
    raise PlanError(
        sentence(
            what="no such row",
            where="rows",
            got=repr(part),
            wanted=f"a part of a name, as {', '.join(near)}" if near else "no rows at all",
            remedy="see maskplan bench --list",
        )
    )


def _told(row: Row) -> str:
    """The figures of a row in a line, or its first time."""
    figures = [f"{figure['label']} {judged(figure)}" for figure in row["figures"]]
    name, first = next(iter(row["milliseconds"].items()))
    return "; ".join(figures) or f"{name} {first['median']:.3f} ms"


def judged(figure: Row) -> str:
    """A figure's value with its aim."""
    value = f"{figure['value']:.3g}{figure['unit']}"
    if not figure["aim"]:
        return value
    return f"{value} ({figure['aim']}: {'met' if figure['met'] else 'missed'})"


def measured(case: Case, clock: Clock, *, runs: int, seconds: float) -> Row:
    """The row of one case; without times if its first work, the one measured, cannot run."""
    row: Row = {
        "name": case.name,
        "title": case.title,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "milliseconds": {},
        "flops": {},
        "figures": [],
        "left_out": {},
    }
    try:
        prepared = case.prepare()
    except Exception as error:  # noqa: BLE001 # other rows go on; the reason is told
        row["left_out"]["inputs"] = _reason(error)
        return row
    works, row["left_out"] = _warm(prepared)
    if next(iter(prepared.works)) not in works:
        return row
    times = interleaved(works, prepared.clock or clock, runs=runs, seconds=seconds)
    row["milliseconds"] = {name: asdict(value) for name, value in times.items()}
    row["flops"] = {name: n for name, n in (prepared.flops or {}).items() if name in times}
    row["figures"] = _figures(prepared.figures, times)
    return row


def _warm(prepared: Prepared) -> tuple[dict[str, Work], dict[str, str]]:
    """(works that ran once, reasons of the others)."""
    works, left_out = {}, {}
    for name, make in prepared.works.items():
        try:
            work = make()
            work()
        except Missing as reason:
            left_out[name] = str(reason)
        except Exception as error:  # noqa: BLE001 # a peer that fails is left out, with its error
            left_out[name] = _reason(error)
        else:
            works[name] = work
    return works, left_out


def _reason(error: Exception) -> str:
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first[:300]}"


def _figures(figures: Iterable[Figure], times: dict[str, Times]) -> list[dict[str, Any]]:
    medians = {name: value.median for name, value in times.items()}
    found = []
    for figure in figures:
        value = figure.value(medians)
        if value is not None:
            told = {"label": figure.label, "value": value, "unit": figure.unit}
            found.append({**told, "aim": figure.aim, "met": figure.met(value)})
    return found
