"""A configuration refuses what no kernel is written for, and every field is in the compile key."""

from dataclasses import fields, replace

import pytest

from kernels_sm100.config import SHARED_BYTES, TMEM_COLUMNS, ForwardConfig
from kernels_sm100.errors import ConfigError
from kernels_sm100.launch import compile_key, key
from kernels_sm100.modes import InnerLoadMode, OuterStoreMode

CHANGES = {
    "dtype": {"dtype": "float16"},
    "head_dim": {"head_dim": 64},
    "head_dim_v": {"head_dim_v": 64},
    "group": {"group": 2},
    "pack_gqa": {"pack_gqa": True},
    "q_tiles": {"q_tiles": 1, "parts": 1},
    "parts": {"parts": 1},
    "stages": {"stages": 2},
    "inner_load": {"inner_load": InnerLoadMode.CP_ASYNC},
    "outer_store": {"outer_store": OuterStoreMode.STG},
    "lazy_rescale": {"lazy_rescale": False},
}


FIELDS = [field.name for field in fields(ForwardConfig)]


def moves_the_key(field):
    """Whether the compile key tells a configuration from one that differs in `field`."""
    pytest.importorskip("cutlass", reason="a key holds the version of CuTe DSL (extra sm100)")
    base = ForwardConfig()
    changed = replace(base, **CHANGES[field])
    assert getattr(changed, field) != getattr(base, field)
    return compile_key(changed) != compile_key(base)


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_changes_the_compile_key(field):
    assert moves_the_key(field)


@pytest.mark.parametrize("field", [f for f in FIELDS if len(CHANGES[f]) == 1])
def test_a_key_that_forgets_a_field_is_found(field, monkeypatch):
    """A kernel for indices once shared its code with one for blocks: the key had no such field."""
    monkeypatch.setattr(key, "fields", lambda c: [f for f in fields(c) if f.name != field])

    assert not moves_the_key(field)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"dtype": "float32"},
            (
                "dtype not available in ForwardConfig: got 'float32', wanted one of bfloat16, "
                "float16; cast q, k, v."
            ),
        ),
        (
            {"head_dim": 72},
            (
                "head_dim not available in ForwardConfig: got 72, wanted a multiple of 16 from 16 "
                "to 128; pad the heads."
            ),
        ),
        (
            {"head_dim_v": 256},
            (
                "head_dim_v not available in ForwardConfig: got 256, wanted a multiple of 16 from "
                "16 to 128; pad the heads."
            ),
        ),
        (
            {"group": 0},
            (
                "group not available in ForwardConfig: got 0, wanted at least 1; give query heads "
                "per KV head."
            ),
        ),
        (
            {"group": 3, "pack_gqa": True},
            (
                "packed group not available in ForwardConfig: got 3, wanted a divisor of 128; do "
                "not pack: pack_gqa=False."
            ),
        ),
        (
            {"q_tiles": 3, "parts": 3},
            (
                "q_tiles not available in ForwardConfig: got 3, wanted 1 or 2; use 2 where a head "
                "has > 128 rows."
            ),
        ),
        (
            {"q_tiles": 1},
            (
                "parts not available in ForwardConfig: got 2, wanted 1 or q_tiles=1; lower the "
                "plan for this shape."
            ),
        ),
        (
            {"stages": 4},
            (
                "stages not available in ForwardConfig: got 4, wanted 2 to 3; leave it None for "
                "as many as fit."
            ),
        ),
    ],
)
def test_what_is_not_available_is_refused(change, text):
    with pytest.raises(ConfigError) as raised:
        ForwardConfig(**change)
    assert str(raised.value) == text


def legal():
    dims = range(16, 129, 16)
    for tiles in (1, 2):
        for dim in dims:
            for dim_v in dims:
                yield ForwardConfig(head_dim=dim, head_dim_v=dim_v, q_tiles=tiles, parts=tiles)


def test_every_legal_configuration_fits_the_hardware():
    for config in legal():
        tiles = config.q_tiles * 128
        tile_bytes = tiles * (config.head_dim + config.head_dim_v) * 2
        assert config.kv_stages >= 2
        assert tile_bytes + config.kv_stages * config.stage_bytes + 3072 <= SHARED_BYTES
        assert 256 + 128 * (config.q_tiles - 1) + config.head_dim_v <= TMEM_COLUMNS
