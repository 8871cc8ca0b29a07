"""Configurations that gather: what they refuse, and that no two modes share compiled code."""

import pytest

from kernels_sm100.config import ForwardConfig
from kernels_sm100.errors import ConfigError
from kernels_sm100.forward_host import FORWARD_SOURCES, TABLES, build_forward, tables_of
from kernels_sm100.launch import CompileCache, compile_key
from kernels_sm100.modes import InnerLoadMode
from tests.kernels.forward.cubin import resources
from tests.kernels.gather.configs import MODE_IDS, MODES, config


def test_modes_never_share_an_entry():
    pytest.importorskip("cutlass", reason="a key holds the version of CuTe DSL (extra sm100)")
    keys = {compile_key(config(mode), sources=FORWARD_SOURCES) for mode in InnerLoadMode}

    assert len(keys) == len(InnerLoadMode)


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
def test_what_is_built_is_what_the_configuration_says(mode):
    pytest.importorskip("cutlass", reason="builds with CuTe DSL (extra sm100)")
    from kernels_sm100.forward_blocks import BlockForward
    from kernels_sm100.forward_gathered import GatheredForward

    gathered, arguments = build_forward(config(mode))
    blocks, fewer = build_forward(config(InnerLoadMode.TMA))

    assert type(gathered) is GatheredForward
    assert type(blocks) is BlockForward
    assert list(arguments) == [
        "q", "k", "v", "o", "lse", *tables_of(config(mode)), "rows", "scale_log2", "ctas", "stream",
    ]  # fmt: skip
    assert set(arguments) - set(fewer) == {"tokens", "keys"}
    assert tables_of(config(InnerLoadMode.TMA)) == TABLES


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"head_dim": 96},
            (
                r"head dimensions of gathered rows not available in ForwardConfig: got \(96, 96\), "
                r"wanted each one of \(64, 128\); pad the heads, or list blocks\."
            ),
        ),
        ({"head_dim_v": 32}, r"got \(64, 32\)"),
    ],
)
def test_other_head_dimensions_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        config(InnerLoadMode.CP_ASYNC, **options)


def test_tiles_that_share_a_tile_id_are_refused():
    with pytest.raises(ConfigError, match=r"parts of a gathered list not available .* got 1"):
        ForwardConfig(parts=1, inner_load=InnerLoadMode.CP_ASYNC)


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
@pytest.mark.parametrize(("head_dim", "q_tiles"), [(64, 1), (64, 2), (128, 2)])
def test_nothing_is_spilled(compile_cache: CompileCache, mode, head_dim, q_tiles):
    pytest.importorskip("cutlass", reason="compiles with CuTe DSL (extra sm100)")
    from tests.kernels.forward.run import ForwardKernel

    kernel = ForwardKernel(config(mode, head_dim=head_dim, q_tiles=q_tiles), compile_cache)

    assert resources(kernel.compiled.entry.cubin)[1] == 0
