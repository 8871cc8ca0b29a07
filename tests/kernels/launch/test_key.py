"""The compile key moves with every field of a configuration, and with nothing else."""

from dataclasses import dataclass, fields, make_dataclass, replace
from enum import Enum

import pytest

pytest.importorskip("cutlass", reason="the key names the version of CuTe DSL (extra sm100)")

from kernels_sm100.errors import ConfigError, UnavailableError
from kernels_sm100.launch import compile_key, key


@dataclass(frozen=True)
class Inner:
    stages: int = 2


@dataclass(frozen=True)
class Config:
    head_dim: int = 64
    packed: bool = False
    dtype: str = "bf16"
    scale: float = 1.0
    tile: tuple[int, int] = (128, 128)
    inner: Inner = Inner()
    limit: int | None = None


@dataclass(frozen=True)
class Other(Config):
    pass


OTHER_VALUES = {
    "head_dim": 128, "packed": True, "dtype": "f16", "scale": 1.5, "tile": (128, 64),
    "inner": Inner(3), "limit": 0,
}  # fmt: skip


def test_every_field_changes_the_key():
    assert set(OTHER_VALUES) == {field.name for field in fields(Config)}
    keys = {compile_key(replace(Config(), **{n: v})) for n, v in OTHER_VALUES.items()}

    assert len(keys) == len(OTHER_VALUES)
    assert compile_key(Config()) not in keys


def test_equal_configurations_have_equal_keys():
    assert compile_key(Config()) == compile_key(Config(tile=(128, 128)))


def test_a_new_field_changes_the_key():
    """A field that is added later counts, whether or not anybody thought of it."""
    older = make_dataclass("Made", [("d", int, 64)], frozen=True)
    newer = make_dataclass("Made", [("d", int, 64), ("lazy", bool, False)], frozen=True)

    assert compile_key(older()) != compile_key(newer())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0, None),
        ("1", 1),
        ((1, 2), (2, 1)),
        (((1,), 2), (1, (2,))),
        ((), None),
    ],
)
def test_values_of_other_types_are_other_values(one, other):
    assert compile_key(replace(Config(), limit=one)) != compile_key(replace(Config(), limit=other))


def test_the_class_the_options_the_sources_and_the_versions_count(tmp_path, monkeypatch):
    source = tmp_path / "kernel.py"
    source.write_text("one")
    base = compile_key(Config(), options=("-O3",), sources=[source])

    assert compile_key(Other(), options=("-O3",), sources=[source]) != base
    assert compile_key(Config(), options=("-O2",), sources=[source]) != base
    source.write_text("two")
    assert compile_key(Config(), options=("-O3",), sources=[source]) != base
    source.write_text("one")
    assert compile_key(Config(), options=("-O3",), sources=[source]) == base
    monkeypatch.setattr(key.metadata, "version", lambda _: "9.9")
    assert compile_key(Config(), options=("-O3",), sources=[source]) != base


def test_what_can_change_is_refused():
    @dataclass
    class Loose:
        d: int = 1

    with pytest.raises(ConfigError, match="configuration can change in config: got Loose"):
        compile_key(Loose())
    with pytest.raises(ConfigError, match=r"in config.limit\[1\]: got list, wanted a frozen data"):
        compile_key(replace(Config(), limit=(1, [2])))
    with pytest.raises(ConfigError, match=r"in config.inner.stages: got function"):
        compile_key(Config(inner=Inner(lambda: 1)))


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(key, "COMPILERS", ("no-such-compiler",))

    with pytest.raises(UnavailableError) as raised:
        compile_key(Config())
    assert str(raised.value) == (
        "no-such-compiler not installed in kernels_sm100.launch: got no such package, wanted CuTe "
        "DSL, which compiles the kernels; pip install 'maskplan[sm100]'."
    )


def test_enums_are_told_apart_by_name_and_by_class():
    class Load(Enum):
        TMA = 0
        COPY = 1

    class Store(Enum):
        TMA = 0

    holder = make_dataclass("Made", [("mode", Enum)], frozen=True)
    keys = {compile_key(holder(mode)) for mode in (Load.TMA, Load.COPY, Store.TMA)}

    assert len(keys) == 3
