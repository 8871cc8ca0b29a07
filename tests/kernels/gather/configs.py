"""Configurations that the tests of this folder share, so that each is compiled once."""

from kernels_sm100.config import ForwardConfig
from kernels_sm100.modes import InnerLoadMode

MODES = (InnerLoadMode.CP_ASYNC, InnerLoadMode.TMA_GATHER4)
PACKED = {"group": 4, "pack_gqa": True, "q_tiles": 2}
MODE_IDS = [mode.name.lower() for mode in MODES]


def config(mode, *, head_dim=64, q_tiles=1, **options):
    """A gathered configuration with D = DV = `head_dim`."""
    options.setdefault("head_dim_v", head_dim)
    return ForwardConfig(
        head_dim=head_dim, q_tiles=q_tiles, parts=q_tiles, inner_load=mode, **options
    )
