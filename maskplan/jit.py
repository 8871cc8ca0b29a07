"""How maskplan compiles: numba, without the GIL, cached on disk where a disk can be written.

Importing this module imports numba (about half a second), so only modules that hold kernels do, and
they are themselves imported inside the functions that need them.

NOTE [No parallel=True]: numba's fallback threading layer aborts the process when two Python threads
enter it at once, and its OpenMP layer clashes with torch's. Kernels here are serial and release the
GIL; `maskplan.threads` runs them side by side.
"""

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any]) -> Any:
    """`function` compiled on first call, with the result cached on disk for the next process.

    Numba looks for a writable place beside the source, then in the user's cache directory; where
    there is neither (a read-only install without a home) it raises when it decorates, and the
    function is compiled afresh in each process instead.
    """
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)
