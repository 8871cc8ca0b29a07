"""Rows that are done, a line of JSON each, in a file that a later run reads."""

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from maskplan.bench.machine import Machine
from maskplan.errors import PlanFileError, sentence

Row = dict[str, Any]
_START = b'{"name"'
_FIELDS = {
    "name": str,
    "title": str,
    "date": str,
    "machine": dict,
    "milliseconds": dict,
    "flops": dict,
    "figures": list,
    "left_out": dict,
}


class Journal:
    """Rows of a file, and the rows of one machine among them.

    A last line that an interrupted run left unfinished is passed over, and cut off when a row is
    added.

    Raises:
        PlanFileError: if the file is no text, or another line is no row.
    """

    def __init__(self, path: str | PathLike[str], machine: Machine) -> None:
        self.path = Path(path)
        self.machine = machine
        self._whole: int | None = None  # bytes before an unfinished line
        self._rows = self._read()

    def rows(self) -> list[Row]:
        """Rows of this machine and these versions, the last of each name."""
        mine = [row for row in self._rows if row["machine"] == self.machine.to_json()]
        return list({row["name"]: row for row in mine}.values())

    def has(self, name: str) -> bool:
        """Whether this machine has a row of this name."""
        return any(row["name"] == name for row in self.rows())

    def add(self, row: Mapping[str, Any]) -> Row:
        """Append a row of this machine, and return it as the file has it."""
        line = json.dumps({**row, "machine": self.machine.to_json()})
        with self.path.open("a", encoding="utf-8") as file:
            if self._whole is not None:
                file.truncate(self._whole)
            file.write(line + "\n")
        self._whole = None
        kept: Row = json.loads(line)
        self._rows.append(kept)
        return kept

    def _read(self) -> list[Row]:
        if not self.path.exists():
            return []
        read = self.path.read_bytes()
        whole, _, rest = read.rpartition(b"\n")
        if rest:
            if not rest.startswith(_START):  # of no row, so not ours to cut off
                raise self._no_row(whole.count(b"\n") + 1 + bool(whole), rest)
            self._whole = len(read) - len(rest)
        return [self._parsed(number, line) for number, line in enumerate(whole.splitlines(), 1)]

    def _parsed(self, number: int, line: bytes) -> Row:
        try:
            row = json.loads(line)
        except ValueError:  # of JSON, or of its encoding
            row = None
        known = isinstance(row, dict) and all(
            isinstance(row.get(name), kind) for name, kind in _FIELDS.items()
        )
        if not known:
            raise self._no_row(number, line)
        read: Row = row
        return read

    def _no_row(self, number: int, line: bytes) -> PlanFileError:
        return PlanFileError(
            sentence(
                what="line is no row of a benchmark",
                where=f"{self.path}, line {number}",
                got=repr(line[:40].decode("utf-8", "replace")),
                wanted=f"a JSON object with {', '.join(_FIELDS)}",
                remedy="give --out another file, or mend this one",
            )
        )
