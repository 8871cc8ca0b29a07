"""The README's session runs as printed, and the papers agree with the code."""

import doctest
import re
from pathlib import Path

import pytest

import maskplan as mp

ROOT = Path(mp.__file__).parents[1]
PAPERS = ("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md")


def test_the_readme_session_runs_as_printed():
    results = doctest.testfile(str(ROOT / "README.md"), module_relative=False)

    assert results.attempted >= 5
    assert results.failed == 0


def test_the_readme_is_one_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 60


@pytest.mark.parametrize("paper", PAPERS)
def test_links_lead_somewhere(paper):
    path = ROOT / paper
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert link.startswith("https://") or (path.parent / link).exists(), link


@pytest.mark.parametrize("paper", PAPERS)
def test_paths_of_the_package_exist(paper):
    for path in re.findall(
        r"`((?:maskplan|tests|benchmarks|examples)/[\w/.]*)`", (ROOT / paper).read_text()
    ):
        if path != "maskplan/interop/":  # comes with the first foreign format
            assert (ROOT / path).exists(), path


def test_both_commands_use_the_tested_versions():
    commands = [
        line for line in (ROOT / "README.md").read_text().splitlines() if "pip install" in line
    ]

    assert len(commands) == 2
    assert all("-c constraints.txt" in line for line in commands)


MODULES = sorted(path for path in (ROOT / "maskplan").rglob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_docstring_examples_run(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    module = __import__(name, fromlist=["_"])
    results = doctest.testmod(module)

    assert results.attempted > 0
    assert results.failed == 0
