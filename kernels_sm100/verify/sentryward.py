"""Runs SentryWard on a captured launch and reads its verdict."""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_sm100.errors import UnavailableError, sentence
from kernels_sm100.verify.description import Captured, describe

RACE_FREE = "race_free"
# Qualifiers that are PTX's defaults and that SentryWard knows only by their absence.
DEFAULT_QUALIFIERS = (".collector::a::discard",)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What SentryWard says of a launch.

    Attributes:
        result: "race_free", "potential_race", "not_wellsynced", "unsupported", "timeout", ...
        diagnostics: what it found, the first ones first.
        warnings: how many warnings it counted.
        seconds: wall time.
        raw: the whole answer.
    """

    result: str
    diagnostics: tuple[dict[str, Any], ...]
    warnings: int
    seconds: float
    raw: dict[str, Any]

    @property
    def race_free(self) -> bool:
        """Whether it proved the launch, for every schedule."""
        return self.result == RACE_FREE


def vote_branches(ptx: str) -> list[int]:
    """PTX lines of the branches that a warp vote decides: the first branch behind each vote."""
    lines = ptx.split("\n")
    votes = [number for number, line in enumerate(lines) if "vote.sync" in line]
    branch = re.compile(r"@!?%p\d+\s+bra")
    return [
        next(n + 1 for n in range(vote, len(lines)) if branch.search(lines[n])) for vote in votes
    ]


def verify(
    captured: Captured,
    *,
    ptx: str | None = None,
    tables: Mapping[str, int] | None = None,
    branches: Mapping[int, bool] | None = None,
    assumptions: Collection[str] = (),
    timeout: float = 300,
    memory_mib: int = 8000,
) -> Verdict:
    """SentryWard's verdict on a launch.

    Args:
        captured: the launch.
        ptx: text of the kernel, if another than the captured one (a mutant) is to be judged.
        tables: as `describe` takes them.
        branches: likewise.
        assumptions: likewise.
        timeout: seconds until it gives up, with the result "timeout".
        memory_mib: memory it may use.

    Raises:
        UnavailableError: if SentryWard is not installed, or does not answer.
    """
    if importlib.util.find_spec("sentryward") is None:
        raise UnavailableError(
            sentence(
                what="SentryWard not installed",
                where="kernels_sm100.verify",
                got="no such package",
                wanted="sentryward, which proves launches race free",
                remedy="pip install 'maskplan[verify]'",
            )
        )
    text = captured.launch.ptx if ptx is None else ptx
    for qualifier in DEFAULT_QUALIFIERS:
        text = text.replace(qualifier, "")
    given = describe(captured, tables=tables, branches=branches, assumptions=assumptions)
    with tempfile.TemporaryDirectory() as folder:
        kernel, description = Path(folder) / "kernel.ptx", Path(folder) / "input.json"
        kernel.write_text(text)
        description.write_text(json.dumps(given))
        limits = ["--timeout", str(timeout), "--memory-limit-mib", str(memory_mib)]
        program = Path(sys.executable).with_name("sentryward")
        done = subprocess.run(  # noqa: S603 - a program of this environment, on files of ours
            [program, kernel, "--input", description, *limits],
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise UnavailableError(
            sentence(
                what="SentryWard gave no answer",
                where="kernels_sm100.verify",
                got=f"exit code {done.returncode}: {done.stderr.strip()[-300:]!r}",
                wanted="JSON on its standard output",
                remedy="run it by hand on the same kernel",
            )
        ) from error
    return Verdict(
        result=str(answer["result"]),
        diagnostics=tuple(answer.get("diagnostics") or ()),
        warnings=int(answer.get("warning_count") or 0),
        seconds=float(answer.get("elapsed_seconds") or 0),
        raw=answer,
    )
