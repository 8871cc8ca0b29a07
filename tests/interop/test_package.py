"""Formats are reached by name, and cost nothing until they are."""

import subprocess
import sys
from pathlib import Path

import pytest

import maskplan as mp

ROOT = Path(mp.__file__).parents[1]


def run(work: str) -> str:
    command = [sys.executable, "-c", work]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout


def test_every_module_is_named_and_reached():
    files = {path.stem for path in (ROOT / "maskplan" / "interop").glob("*.py")}
    internal = {"__init__", "block_bits", "magi_kernel", "untrusted", "whole_blocks"}

    assert sorted(files - internal) == mp.interop.__all__
    for name in mp.interop.__all__:
        assert getattr(mp.interop, name).__doc__
    with pytest.raises(AttributeError, match="has no attribute 'caffe'"):
        mp.interop.caffe  # noqa: B018


def test_the_import_does_not_load_formats():
    loaded = run("import maskplan, sys; print(*[m for m in sys.modules if 'interop.' in m])")
    assert loaded.split() == []
    assert run("import maskplan; print(maskplan.interop.magi.__name__)").strip() == (
        "maskplan.interop.magi"
    )
