"""How maskplan compiles: numba, without the GIL, cached on disk where a disk can be written.

Importing this module imports numba (about half a second), so only modules that hold kernels do, and
they are themselves imported inside the functions that need them.

NOTE [No parallel=True]: numba's fallback threading layer aborts the process when two Python threads
enter it at once, and its OpenMP layer clashes with torch's. Kernels here are serial and release the
GIL; `maskplan.threads` runs them side by side.

NOTE [Stale kernels]: numba's disk cache watches the one file a function is written in, but compiled
code holds what it calls, from other files too. After a pull that changes only a callee it would go
on running the old code. So every kernel is stamped with the sources of all of them.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

# Where code that gets compiled is written, relative to the package.
SOURCES = ("**/*_kernel.py", "tile_pool.py", "attention/vectors.py")


@cache
def sources_digest() -> str:
    """SHA-256 of the text of every file that holds compiled code, in hex."""
    root = Path(__file__).parent
    state = hashlib.sha256()
    for path in sorted({path for pattern in SOURCES for path in root.glob(pattern)}):
        state.update(path.relative_to(root).as_posix().encode())
        state.update(path.read_bytes())
    return state.hexdigest()


def _stamp(dispatcher: Any) -> bool:
    """Make the disk cache of `dispatcher` depend on all sources; False if numba has changed."""
    file: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    stamp = getattr(file, "_source_stamp", None)
    if stamp is None:
        return False
    file._source_stamp = (stamp, sources_digest())  # noqa: SLF001 - numba has no public way
    return True


def kernel(function: Callable[..., Any]) -> Any:
    """`function` compiled on first call, with the result cached on disk for the next process.

    Numba looks for a writable place beside the source, then in the user's cache directory; where
    there is neither (a read-only install without a home) it raises when it decorates, and the
    function is compiled afresh in each process instead. So it is where the cache cannot be stamped.
    """
    try:
        dispatcher = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)
    return dispatcher if _stamp(dispatcher) else numba.njit(nogil=True)(function)
