"""Every example runs by itself, within two minutes, and prints a picture."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"video_transformer": "diffusers"}  # extras


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(path, tmp_path):
    if path.stem in NEEDS and find_spec(NEEDS[path.stem]) is None:
        pytest.skip(f"{NEEDS[path.stem]} is not installed")
    done = subprocess.run(
        [sys.executable, path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)},
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert "┌" in done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_asks_one_question(path):
    source = path.read_text()

    assert source.startswith('"""')
    assert source.partition('"""')[2].partition('"""')[0].splitlines()[0].endswith("?")
    assert "def main()" in source


def test_there_are_examples():
    assert len(EXAMPLES) >= 4
