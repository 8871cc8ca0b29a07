"""The compile key holds the text of all modules of a kernel, which import each other one way."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import kernels_sm100
from kernels_sm100.backward_host import BACKWARD_SOURCES
from kernels_sm100.forward_host import FORWARD_SOURCES

ROOT = Path(kernels_sm100.__file__).parent
# What builders import; and what makes no code: texts of errors, which configurations raise.
FORWARD = {"forward_blocks", "forward_gathered"}
BACKWARD = {
    "backward_loopq", "backward_loopk", "backward_loopk_gathered", "preprocess", "postprocess",
}  # fmt: skip
NO_CODE = {"errors", "field_types"}


def imports(text):
    """Modules of kernels_sm100 that a text imports, wherever in it, by their first name."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "kernels_sm100":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("kernels_sm100."):
            found.add(node.module.split(".")[1])
    return found


GRAPH = {path.stem: imports(path.read_text()) for path in ROOT.glob("*.py")}


def reached(modules, graph):
    """These modules and all that they import in turn."""
    found, left = set(), list(modules)
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += graph[module]
    return found


@pytest.mark.parametrize(
    ("kernels", "sources"),
    [(FORWARD, FORWARD_SOURCES), (BACKWARD, BACKWARD_SOURCES)],
    ids=["forward", "backward"],
)
def test_sources_are_what_the_kernels_import(kernels, sources):
    assert {path.stem for path in sources} == reached(kernels, GRAPH) - NO_CODE
    assert {path.parent for path in sources} == {ROOT}


def test_a_module_that_is_imported_late_is_reached():
    graph = GRAPH | {"mma": imports("def f():\n    from kernels_sm100.columns import Column")}

    assert reached(FORWARD, graph) - reached(FORWARD, GRAPH) == {"columns", "backward_config"}


def test_modules_of_kernels_import_no_circle():
    assert set(TopologicalSorter(GRAPH).static_order()) >= set(GRAPH)
    with pytest.raises(CycleError):
        TopologicalSorter(GRAPH | {"mma": {"backward_loopk"}}).prepare()
