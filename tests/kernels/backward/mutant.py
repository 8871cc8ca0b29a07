"""Copies of a backward kernel with a fault planted in its source."""

import importlib
import sys
from itertools import count

from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.backward_host import BACKWARD_SOURCES
from kernels_sm100.launch import CompileCache
from tests.kernels.backward.run import BackwardKernel

_KEPT = ("config", "backward_config", "modes")
_KERNEL = {
    ("loop_q", False): ("backward_loopq", "LoopQ"),
    ("loop_k", False): ("backward_loopk", "LoopK"),
    ("loop_k", True): ("backward_loopk_gathered", "GatheredLoopK"),
}
_number = count()


def plant(folder, config: BackwardConfig, *changes, runner=BackwardKernel):
    """The kernel compiled with changes (module, old text, new text), each found exactly once.

    All modules of device code are copied under names of their own, so that nothing of the true
    kernel changes. `runner` is the class that calls it.
    """
    prefix = f"backward_mutant_{next(_number)}_"
    names = [path.stem for path in BACKWARD_SOURCES if path.stem not in _KEPT]
    texts = {path.stem: path.read_text() for path in BACKWARD_SOURCES if path.stem in names}
    for module, old, new in changes:
        assert texts[module].count(old) == 1, (module, old, texts[module].count(old))
        texts[module] = texts[module].replace(old, new)
    for name in names:
        renamed = texts[name]
        for other in names:
            renamed = renamed.replace(
                f"from kernels_sm100.{other} import", f"from {prefix}{other} import"
            )
        (folder / f"{prefix}{name}.py").write_text(renamed)

    def build(config):
        sys.path.insert(0, str(folder))
        try:
            module_name, kernel = _KERNEL[config.direction, config.gathered]
            module = importlib.import_module(prefix + module_name)
            return getattr(module, kernel)(config), module.fake_arguments(config)
        finally:
            sys.path.remove(str(folder))

    return runner(config, CompileCache(folder / "cache"), build=build)
