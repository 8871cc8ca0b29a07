"""A backward kernel with a fault planted in its source."""

from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.backward_host import BACKWARD_SOURCES
from kernels_sm100.launch import CompileCache
from tests.kernels.backward.run import BackwardKernel
from tests.kernels.planting import Copies

_KEPT = ("config", "backward_config", "modes")
_KERNEL = {
    ("loop_q", False): ("backward_loopq", "LoopQ"),
    ("loop_k", False): ("backward_loopk", "LoopK"),
    ("loop_k", True): ("backward_loopk_gathered", "GatheredLoopK"),
}


def plant(folder, config: BackwardConfig, *changes, runner=BackwardKernel):
    """The kernel compiled with `changes`, as `Copies` takes them; called by class `runner`."""
    copies = Copies(folder, BACKWARD_SOURCES, _KEPT, changes)

    def build(config):
        name, kernel = _KERNEL[config.direction, config.gathered]
        module = copies.module(name)
        return getattr(module, kernel)(config), module.fake_arguments(config)

    return runner(config, CompileCache(folder / "cache"), build=build)
