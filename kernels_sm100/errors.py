"""The errors kernels_sm100 raises, and the one sentence they are written in.

Every message has five parts: what is wrong, where, what came, what was wanted and what to do.
Each fault that the emulator can tell from the others has a class of its own, so that a test can say
which check caught it.
"""


class KernelsError(Exception):
    """Base of every error that kernels_sm100 raises on purpose."""


class EmulationError(KernelsError):
    """Base of everything that stops an emulated launch."""


class PtxSyntaxError(EmulationError, ValueError):
    """PTX that the parser does not understand."""


class UnknownInstruction(EmulationError, NotImplementedError):  # noqa: N818 - names what it is
    """An instruction, modifier or operand form that the emulator does not model."""


class LaunchError(EmulationError, ValueError):
    """A launch that no driver would accept: shape, shared memory or parameters."""


class TensorMapError(EmulationError, ValueError):
    """A TMA descriptor, or a use of one, that the hardware would refuse."""


class Deadlock(EmulationError):  # noqa: N818 - names what it is
    """No warp can move, and no asynchronous operation is outstanding."""


class DivergenceError(EmulationError):
    """A warp-wide instruction that the lanes it names do not reach together."""


class BarrierError(EmulationError):
    """A barrier that is misused: not initialised, too many arrivals, wrong count."""


class BarrierOverrun(BarrierError):
    """A phase completed twice before a waiter saw it once."""


class MemoryFault(EmulationError):  # noqa: N818 - the hardware's word
    """An access outside of every allocation or window."""


class MisalignedAccess(MemoryFault):
    """An address that is no multiple of what its instruction needs."""


class UninitialisedRead(MemoryFault):
    """A read of bytes, columns or registers that nobody wrote."""


class TensorMemoryError(EmulationError):
    """TMEM that is leaked, freed too early, or used outside of its allocation."""


class RaceError(EmulationError):
    """Two accesses, one of them a write, that nothing orders."""


class MissingFence(RaceError):
    """Accesses that are ordered, but whose proxies no fence joins."""


class Trap(EmulationError):  # noqa: N818 - the instruction's name
    """The kernel executed `trap`."""


def sentence(*, what: str, where: str, got: object, wanted: object, remedy: str) -> str:
    """One sentence with the five parts, in their fixed order.

    >>> sentence(what="row out of range", where="warp 3", got=9, wanted="0 <= row < 8", remedy="fix")
    'row out of range in warp 3: got 9, wanted 0 <= row < 8; fix.'
    """
    return f"{what} in {where}: got {got}, wanted {wanted}; {remedy}."
