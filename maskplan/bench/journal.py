"""Rows that are done, a line of JSON each, in a file that a later run reads."""

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from maskplan.bench.machine import Machine
from maskplan.errors import PlanFileError, sentence

Row = dict[str, Any]


class Journal:
    """Rows of a file, and the rows of one machine among them.

    A last line that an interrupted run left unfinished is cut off.

    Raises:
        PlanFileError: if another line is no row.
    """

    def __init__(self, path: str | PathLike[str], machine: Machine) -> None:
        self.path = Path(path)
        self.machine = machine
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
            file.write(line + "\n")
        kept: Row = json.loads(line)
        self._rows.append(kept)
        return kept

    def _read(self) -> list[Row]:
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        whole, _, rest = text.rpartition("\n")
        if rest:
            self.path.write_text(whole + "\n" if whole else "", encoding="utf-8")
        return [self._parsed(number, line) for number, line in enumerate(whole.splitlines(), 1)]

    def _parsed(self, number: int, line: str) -> Row:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict) or not {"name", "machine"} <= row.keys():
            raise PlanFileError(
                sentence(
                    what="line is no row of a benchmark",
                    where=f"{self.path}, line {number}",
                    got=repr(line[:40]),
                    wanted="a JSON object with name and machine",
                    remedy="give --out another file, or mend this one",
                )
            )
        return row
