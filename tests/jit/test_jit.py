"""The disk cache of compiled kernels: reused, never stale, and not needed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba

import maskplan
from maskplan import jit

PACKAGE = Path(maskplan.__file__).parent

CALLEE = """
from maskplan.jit import kernel


@kernel
def callee(x):
    return x + 1
"""
CALLER = """
from maskplan.callee_kernel import callee
from maskplan.jit import kernel


@kernel
def caller(x):
    return 10 * callee(x)
"""
PROGRAM = """
from maskplan.caller_kernel import caller
print(caller(1), sum(caller.stats.cache_hits.values()))
"""


def small_package(root: Path) -> Path:
    """A copy of the package's jit module with two kernels, one calling the other."""
    package = root / "maskplan"
    package.mkdir()
    (package / "__init__.py").write_text("")
    shutil.copy(PACKAGE / "jit.py", package)
    (package / "callee_kernel.py").write_text(CALLEE)
    (package / "caller_kernel.py").write_text(CALLER)
    return package


def run(root: Path, **environment: str) -> list[int]:
    """(result, disk cache hits) of the program in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"} | environment,
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(word) for word in done.stdout.split()]


def test_a_second_process_loads_what_the_first_compiled(tmp_path):
    small_package(tmp_path)

    assert run(tmp_path) == [20, 0]
    assert run(tmp_path) == [20, 1]


def test_a_changed_callee_recompiles_its_callers(tmp_path):
    package = small_package(tmp_path)
    assert run(tmp_path) == [20, 0]
    (package / "callee_kernel.py").write_text(CALLEE.replace("x + 1", "x + 2"))

    assert run(tmp_path) == [30, 0]


def test_without_a_place_for_the_cache_kernels_still_run(tmp_path):
    """Numba is told to keep its cache where no directory can be made."""
    small_package(tmp_path)
    (tmp_path / "file").write_text("")

    assert run(tmp_path, NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator") == [20, 0]


def test_kernels_are_compiled_each_time_if_the_cache_cannot_be_stamped(monkeypatch):
    monkeypatch.setattr(jit, "_stamp", lambda _: False)
    double = jit.kernel(lambda x: 2 * x)

    assert double(4) == 8
    assert type(double._cache) is numba.core.caching.NullCache


def test_every_file_with_compiled_code_is_in_the_stamp():
    stamped = {path for pattern in jit.SOURCES for path in PACKAGE.glob(pattern)}
    words = ("import numba", "from numba", "llvmlite", "import kernel")
    compiled = {
        path for path in PACKAGE.rglob("*.py") if any(word in path.read_text() for word in words)
    }

    assert compiled - stamped - {PACKAGE / "jit.py"} - lookers() == set()


def lookers() -> set[Path]:
    """Files that mention numba and compile nothing: `maskplan doctor`."""
    return {PACKAGE / "cli" / "doctor.py"}
