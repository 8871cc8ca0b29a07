"""The forward kernel with a fault planted in its source."""

from kernels_sm100.config import ForwardConfig
from kernels_sm100.forward_host import FORWARD_SOURCES
from kernels_sm100.launch import CompileCache
from tests.kernels.forward.run import ForwardKernel
from tests.kernels.planting import Copies

_KEPT = ("config", "modes")


def plant(folder, config: ForwardConfig, *changes):
    """The kernel compiled with `changes`, as `Copies` takes them."""
    copies = Copies(folder, FORWARD_SOURCES, _KEPT, changes)

    def build(config):
        if config.gathered:
            module = copies.module("forward_gathered")
            return module.GatheredForward(config), module.fake_arguments(config)
        fakes = copies.module("forward").fake_arguments(config)
        return copies.module("forward_blocks").BlockForward(config), fakes

    return ForwardKernel(config, CompileCache(folder / "cache"), build=build)
