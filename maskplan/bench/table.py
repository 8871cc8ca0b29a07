"""Rows as text: what is judged first, then times and rates; Markdown shows the tables too."""

from collections.abc import Iterable, Sequence

from maskplan.bench.journal import Row
from maskplan.bench.machine import Machine
from maskplan.bench.runner import judged


def tables(machine: Machine, rows: Sequence[Row]) -> str:
    """Everything measured on `machine`, for people."""
    dates = sorted({row["date"] for row in rows})
    when = " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))
    parts = [f"{machine}{f'; {when}' if when else ''}"]
    figures = list(_figures(rows))
    if figures:
        parts.append(_table(("work", "figure", "measured"), figures))
    parts.append(_table(("work", "engine", "ms", "lowest to highest", "TFLOP/s"), _times(rows)))
    left_out = [
        f"- {row['title']}: {name}: {reason}"
        for row in rows
        for name, reason in row["left_out"].items()
    ]
    if left_out:
        parts.append("\n".join(["left out:", *left_out]))
    return "\n\n".join(parts)


def _figures(rows: Iterable[Row]) -> Iterable[tuple[str, ...]]:
    for row in rows:
        for figure in row["figures"]:
            yield row["title"], figure["label"], judged(figure)


def _times(rows: Iterable[Row]) -> Iterable[tuple[str, ...]]:
    for row in rows:
        for name, times in row["milliseconds"].items():
            rate = row["flops"].get(name)
            yield (
                row["title"],
                name,
                f"{times['median']:.3f}",
                f"{times['low']:.3f} to {times['high']:.3f}",
                "" if rate is None else f"{rate / times['median'] / 1e9:.3g}",
            )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; a work's name stands in its first row only."""
    body, last = [], None
    for row in rows:
        body.append(list(row) if row[0] != last else ["", *row[1:]])
        last = row[0]
    cells = [list(head), *body]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    rule = "| " + " | ".join("-" * max(width, 3) for width in widths) + " |"
    return "\n".join([lines[0], rule, *lines[1:]])
