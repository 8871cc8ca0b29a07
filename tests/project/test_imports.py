"""Which module may import which, read from the sources; and what `import maskplan` loads."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import maskplan

ROOT = Path(maskplan.__file__).parent
PACKAGE = "maskplan"

# The arrows of DESIGN.md, from first to last: a module imports from its own layer and those before.
LAYERS = (
    {"errors", "geometry"},
    {"bits", "provenance", "jit", "threads", "untransformed"},
    {"block_lists", "plan", "tile_pool"},
    {"device"},
    {"normal", "normal_kernel", "dense", "validate", "stats", "pairs"},
    {"build", "patterns", "video", "select"},
    {"transform"},
    {"lower"},
    {"attention"},
    {"container"},
    {"io", "book", "quality", "viz", "interop", "diffusers", "bench"},
    {"", "cli", "__main__"},
)
HEAVY = ("numba", "scipy", "matplotlib", "rich", "typer", "safetensors", "llvmlite", "diffusers")


def layer_of(module: str) -> int:
    """The layer of `maskplan.a.b`, by its first part under maskplan."""
    part = module.removeprefix(PACKAGE).removeprefix(".").split(".")[0]
    for number, names in enumerate(LAYERS):
        if part in names:
            return number
    raise AssertionError(f"{module} stands in no layer: put it into LAYERS and into DESIGN.md")


def lazy_methods(tree: ast.Module) -> set[ast.AST]:
    """Everything inside a function: methods of Plan import what they delegate to."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for inner in ast.walk(node)
    }


def type_checking(tree: ast.Module) -> set[ast.AST]:
    """Everything under `if TYPE_CHECKING:`."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }


def imported(tree: ast.Module, *, skip: set[ast.AST]) -> set[str]:
    """Names of modules that `tree` imports; `from a import b` counts as a and as a.b."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in skip:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def backward_edges(module: str, source: str) -> list[str]:
    """Imports of `module` that go against the arrows."""
    tree = ast.parse(source)
    # The one exception: methods of Plan are one-line delegates that import what they call.
    skip = type_checking(tree)
    if module in ("maskplan.plan", "maskplan.block_lists"):
        skip |= lazy_methods(tree)
    own = layer_of(module)
    edges = []
    for name in sorted(imported(tree, skip=skip)):
        if name.split(".")[0] != PACKAGE or name.count(".") < 1:
            continue
        target = (
            name if (ROOT / Path(*name.split(".")[1:2])).is_dir() else ".".join(name.split(".")[:2])
        )
        if not is_module(target):
            target = PACKAGE  # a public name, taken from the top
        if layer_of(target) > own:
            edges.append(f"{module} imports {name}")
    return edges


def is_module(name: str) -> bool:
    path = ROOT / Path(*name.split(".")[1:2])
    return path.is_dir() or path.with_suffix(".py").is_file()


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found.append((".".join(parts).removesuffix(".__init__"), path))
    return found


def test_imports_point_one_way():
    edges = [edge for name, path in modules() for edge in backward_edges(name, path.read_text())]

    assert edges == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("maskplan.geometry", "from maskplan.plan import Plan"),
        ("maskplan.bits", "import maskplan.plan"),
        ("maskplan.build.topk", "from maskplan.transform import combine"),
        ("maskplan.transform.reblock", "def f():\n    from maskplan.lower.target import target"),
        ("maskplan.attention.call", "import maskplan.cli"),
        ("maskplan.plan", "from maskplan.transform.combine import combine"),
        ("maskplan.stats", "from maskplan import load"),
    ],
)
def test_the_arrow_test_can_fail(module, source):
    assert len(backward_edges(module, source)) == 1


def test_methods_of_plan_may_import_lazily():
    lazy = "class Plan:\n    def f(self):\n        from maskplan.transform.combine import combine\n"

    assert backward_edges("maskplan.plan", lazy) == []


def test_no_module_stringifies_annotations():
    """Run-time checks and kernel decorators read annotations; strings defeat both."""
    root = ROOT.parent
    sources = [*root.glob("maskplan/**/*.py"), *root.glob("tests/**/*.py")]
    sources += [*root.glob("examples/*.py"), *root.glob("benchmarks/**/*.py")]
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "__future__"), path


# What the import loads

BLOCKED_IMPORT = """
    import sys

    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {heavy!r}:
                raise ImportError(name + " is blocked")

    sys.meta_path.insert(0, Block())
    {work}
"""


def run_blocked(work: str) -> subprocess.CompletedProcess:
    """Run `work` in a cold process in which heavy modules cannot be imported."""
    source = textwrap.dedent(BLOCKED_IMPORT).format(heavy=HEAVY, work=work)
    return subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        cwd=ROOT.parent,
        check=False,
    )


def test_the_import_needs_nothing_heavy():
    done = run_blocked("import maskplan")

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["maskplan.jit", "maskplan.normal_kernel"])
def test_the_blocked_import_can_fail(module):
    done = run_blocked(f"import {module}")

    assert done.returncode != 0
    assert "numba is blocked" in done.stderr


def test_the_import_loads_nothing_heavy():
    work = "import maskplan, sys; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", work], capture_output=True, text=True, cwd=ROOT.parent, check=True
    )

    assert not set(HEAVY) & set(done.stdout.split())
