"""The public names: sorted, complete, documented and annotated; and the package's own data."""

import inspect
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import maskplan as mp

ROOT = Path(mp.__file__).parents[1]


def names_of(module) -> list[str]:
    """What a star import of `module` should give: its names that are not private or modules."""
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    )


def public_objects() -> list[tuple[str, object]]:
    found = [(name, getattr(mp, name)) for name in mp.__all__]
    found = [(name, value) for name, value in found if not inspect.ismodule(value)]
    for cls in [value for _, value in found if inspect.isclass(value)]:
        for name, member in vars(cls).items():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                found.append((f"{cls.__name__}.{name}", member))
    return found


def fault_of(name: str, value: object) -> str | None:
    """Why a public object is not documented or annotated, or None."""
    if not inspect.getdoc(value):
        return f"{name} has no docstring"
    function = value.fget if isinstance(value, property) else value
    if inspect.isclass(value) or not inspect.isroutine(function):
        return None
    function = getattr(function, "__func__", function)
    signature = inspect.signature(function)
    bare = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.annotation is parameter.empty and parameter.name not in {"self", "cls"}
    ]
    if bare or signature.return_annotation is signature.empty:
        return f"{name} lacks annotations: {bare or 'return'}"
    return None


def test_all_is_sorted_and_complete():
    assert mp.__all__ == sorted(mp.__all__)
    assert set(names_of(mp)) <= set(mp.__all__)
    assert all(hasattr(mp, name) for name in mp.__all__)


def test_every_public_name_is_documented_and_annotated():
    assert [fault for name, value in public_objects() if (fault := fault_of(name, value))] == []


def test_the_documentation_test_can_fail():
    def bare(x):
        """Documented."""

    def silent(x: int) -> int:
        return x

    assert fault_of("bare", bare) == "bare lacks annotations: ['x']"
    assert fault_of("silent", silent) == "silent has no docstring"


def test_the_version_is_the_installed_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert mp.__version__ == project["version"]
    try:
        installed = metadata.version("maskplan")
    except metadata.PackageNotFoundError:
        pytest.skip("runs from a checkout that is not installed")
    assert mp.__version__ == installed


def test_errors_are_shown_under_their_public_name():
    assert mp.PlanError.__module__ == "maskplan"


def test_types_are_shipped():
    assert (Path(mp.__file__).parent / "py.typed").is_file()


def kernel_modules() -> set[str]:
    package = ROOT / "maskplan"
    marks = ("@kernel", "@triton.jit")
    files = [
        path for path in package.rglob("*.py") if any(mark in path.read_text() for mark in marks)
    ]
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in files]
    return {".".join(part) for part in parts}


def test_the_type_checker_s_list_of_kernels_is_complete():
    """Kernel modules are unannotated by design, and nothing else is."""
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    listed = {name for entry in overrides for name in entry["module"] if "maskplan" in name}

    assert kernel_modules() == listed
