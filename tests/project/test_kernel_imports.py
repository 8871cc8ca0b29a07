"""kernels_sm100: what may import what, and what an import loads."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kernels_sm100
from tests.project.test_imports import imported, type_checking

ROOT = Path(kernels_sm100.__file__).parent
PACKAGE = "kernels_sm100"

# From first to last: a module of the emulator imports from its own layer and those before it.
LAYERS = (
    {"errors"},
    {"emulator.global_memory"},
    {"emulator.launch", "emulator.ptx", "emulator.lanes"},
    {"emulator.launch_checks", "emulator.parser"},
    {"emulator.codegen"},
    {"emulator.races"},
    {"emulator.machine"},
    {"emulator.grid"},
    {"emulator"},
)
HEAVY = ("torch", "numba", "cutlass", "tvm_ffi", "scipy", "flash_attn")


def sources() -> list[tuple[str, Path]]:
    return [
        (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path)
        for path in sorted(ROOT.rglob("*.py"))
    ]


def layer_of(module: str) -> int | None:
    """The layer of a module; None outside of the emulator's core (capture, launch, kernels)."""
    parts = module.split(".")
    name = ".".join(parts[:2]) if parts[0] == "emulator" else parts[0]
    for number, names in enumerate(LAYERS):
        if name in names:
            return number
    return None


def lazy(tree: ast.Module) -> set[ast.AST]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {inner for function in functions for inner in ast.walk(function)}


def backward_edges(module: str, text: str) -> list[str]:
    """Imports against the arrows. `emulate` alone imports what it starts when it is called."""
    tree = ast.parse(text)
    skip = type_checking(tree)
    if module == "emulator.launch":
        skip |= lazy(tree)
    own = layer_of(module)
    if own is None:
        return []
    edges = []
    for name in sorted(imported(tree, skip=skip)):
        target = name.removeprefix(f"{PACKAGE}.")
        layer = layer_of(target)
        if name.startswith(f"{PACKAGE}.") and (layer is None or layer > own):
            # `from kernels_sm100.emulator.launch import X` also counts as `...launch.X`
            edges.append(f"{module} imports {name}")
    return edges


def test_the_emulator_imports_one_way():
    assert [e for name, path in sources() for e in backward_edges(name, path.read_text())] == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("emulator.parser", "from kernels_sm100.emulator.codegen import forms"),
        ("emulator.lanes.bits", "from kernels_sm100.emulator.machine import shared"),
        ("emulator.codegen.memory", "from kernels_sm100.emulator.machine.shared import load"),
        ("emulator.races.clock", "import kernels_sm100.emulator.grid"),
        ("emulator.machine.tma", "def f():\n    from kernels_sm100.emulator.capture import export"),
    ],
)
def test_the_arrow_test_can_fail(module, text):
    assert len(backward_edges(module, text)) >= 1


def test_kernels_never_import_maskplan():
    for name, path in sources():
        names = imported(ast.parse(path.read_text()), skip=set())
        assert not [n for n in names if n.split(".")[0] == "maskplan"], name


def test_no_module_stringifies_annotations():
    for name, path in sources():
        assert "from __future__ import annotations" not in path.read_text(), name


def test_the_emulator_needs_numpy_only():
    work = """
        import sys

        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {heavy!r}:
                    raise ImportError(name + " is blocked")

        sys.meta_path.insert(0, Block())
        import kernels_sm100.emulator
        import kernels_sm100.emulator.grid
        from kernels_sm100.emulator.codegen import load_families

        load_families()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(work).format(heavy=HEAVY)],
        capture_output=True,
        text=True,
        cwd=ROOT.parent,
        check=False,
    )

    assert done.returncode == 0, done.stderr
