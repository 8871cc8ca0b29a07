"""Triton's interpreter, made to work with the numpy that is installed.

From 2.4 on numpy does not turn an array of one element into an int, which is how the interpreter of
Triton 3.6 reads the bounds of a loop.
"""

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_item(tensor, scope):
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def make_it_work() -> None:
    """Read loop bounds with `.item()`."""
    interpreter._patch_lang_tensor = _patch_with_item
