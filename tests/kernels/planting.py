"""Copies of a kernel's modules with a fault planted in their text."""

import importlib
import sys
from itertools import count

_number = count()


class Copies:
    """Modules of device code under names of their own, so that nothing of the true ones changes.

    `changes` are (module, old text, new text), each found exactly once. Modules in `kept` are not
    copied: configurations have to stay of the class that callers make.
    """

    def __init__(self, folder, sources, kept, changes):
        self._folder = folder
        self._prefix = f"planted_{next(_number)}_"
        texts = {path.stem: path.read_text() for path in sources if path.stem not in kept}
        for module, old, new in changes:
            assert texts[module].count(old) == 1, (module, old, texts[module].count(old))
            texts[module] = texts[module].replace(old, new)
        for name, text in texts.items():
            renamed = text
            for other in texts:
                renamed = renamed.replace(
                    f"from kernels_sm100.{other} import", f"from {self._prefix}{other} import"
                )
            (folder / f"{self._prefix}{name}.py").write_text(renamed)

    def module(self, name):
        """The copy of a module, imported."""
        sys.path.insert(0, str(self._folder))
        try:
            return importlib.import_module(self._prefix + name)
        finally:
            sys.path.remove(str(self._folder))
