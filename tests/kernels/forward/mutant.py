"""Copies of the kernel with a fault planted in its source."""

import importlib
import sys
from itertools import count

from kernels_sm100.config import ForwardConfig
from kernels_sm100.forward_host import FORWARD_SOURCES
from kernels_sm100.launch import CompileCache
from tests.kernels.forward.run import ForwardKernel

_KEPT = ("config", "modes")
_number = count()


def plant(folder, config: ForwardConfig, *changes):
    """The kernel compiled with changes (module, old text, new text), each found exactly once.

    All modules of device code are copied under names of their own, so that nothing of the true
    kernel changes.
    """
    prefix = f"forward_mutant_{next(_number)}_"
    names = [path.stem for path in FORWARD_SOURCES if path.stem not in _KEPT]
    texts = {path.stem: path.read_text() for path in FORWARD_SOURCES if path.stem in names}
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
            if config.gathered:
                module = importlib.import_module(f"{prefix}forward_gathered")
                return module.GatheredForward(config), module.fake_arguments(config)
            module = importlib.import_module(f"{prefix}forward_blocks")
            fakes = importlib.import_module(f"{prefix}forward")
            return module.BlockForward(config), fakes.fake_arguments(config)
        finally:
            sys.path.remove(str(folder))

    return ForwardKernel(config, CompileCache(folder / "cache"), build=build)
