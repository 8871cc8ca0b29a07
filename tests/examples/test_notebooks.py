"""The notebooks run, and say what they said when their outputs were kept.

Cells are run here, in one process, as Jupyter would: statements in order, the last one shown.
That needs no kernel, no sockets and no Jupyter in the environment, and a failure points at a line.
"""

import ast
import contextlib
import io
import json
import re
from pathlib import Path

import matplotlib as mpl
import pytest

mpl.use("Agg")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def cells_of(path: Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def run(source: str, names: dict) -> object:
    """The value of the last expression, None where a cell ends with something else."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)  # noqa: S102 - our own notebook
    return None if last is None else eval(ast.unparse(last.value), names)  # noqa: S307 - likewise


def kept_text(cell: dict) -> str:
    return "".join("".join(o["text"]) for o in cell["outputs"] if o["output_type"] == "stream")


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def assert_same(now: str, kept: str) -> None:
    """Equal words, and numbers equal up to rounding: other processors add in another order."""
    assert NUMBER.sub("#", now) == NUMBER.sub("#", kept)
    assert numbers(now) == pytest.approx(numbers(kept), rel=0.01, abs=2e-3)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_and_its_outputs_are_current(path, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for cell in cells_of(path):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            shown = run("".join(cell["source"]), names)
        assert_same(printed.getvalue(), kept_text(cell))
        pages = [
            o["data"]["text/html"] for o in cell["outputs"] if "text/html" in o.get("data", {})
        ]
        for page in pages:
            text = re.compile(r'src="[^"]*"|<[^>]*>')
            assert_same(text.sub("", shown._repr_html_()), text.sub("", "".join(page)))
        plt.close("all")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_was_executed_in_order(path):
    cells = cells_of(path)

    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert "error" not in kinds
    assert "image/png" in {
        kind for cell in cells for output in cell["outputs"] for kind in output.get("data", {})
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_names_nobody_s_machine(path):
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text(encoding="utf-8"))


def test_there_are_two_notebooks():
    assert len(NOTEBOOKS) >= 2


def test_a_stale_output_is_noticed():
    with pytest.raises(AssertionError):
        assert_same("density 12.27%", "density 12.57%")
    with pytest.raises(AssertionError):
        assert_same("density 12.27%", "sparsity 12.27%")
