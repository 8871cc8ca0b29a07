"""The errors kernels_sm100 raises, and the one sentence they are written in.

Every message has five parts: what is wrong, where, what came, what was wanted and what to do.
Each fault that the emulator can tell from the others has a class of its own, so that a test can say
which check caught it.
"""


class KernelError(Exception):
    """Base of every error that kernels_sm100 raises on purpose."""


class ConfigError(KernelError, ValueError):
    """A configuration that no kernel is written for."""


class UnavailableError(KernelError, RuntimeError):
    """A package that is not installed, or a device that is not there."""


class CaptureError(KernelError, RuntimeError):
    """Host code that cannot be run, or a launch that cannot be captured."""


class EmulatorError(KernelError, RuntimeError):
    """Base of everything that stops an emulated launch."""


class PtxSyntaxError(EmulatorError, ValueError):
    """PTX that the parser does not understand."""


class UnknownInstruction(EmulatorError, NotImplementedError):  # noqa: N818 - names what it is
    """An instruction, modifier or operand form that the emulator does not model."""


class LaunchError(EmulatorError, ValueError):
    """A launch that no driver would accept: shape, shared memory or parameters."""


class TensorMapError(EmulatorError, ValueError):
    """A TMA descriptor, or a use of one, that the hardware would refuse."""


class Deadlock(EmulatorError):  # noqa: N818 - names what it is
    """No warp can move, and no asynchronous operation is outstanding."""


class DivergenceError(EmulatorError):
    """A warp-wide instruction that the lanes it names do not reach together."""


class BarrierError(EmulatorError):
    """A barrier that is misused: not initialised, too many arrivals, wrong count."""


class BarrierOverrun(BarrierError):  # noqa: N818 - names what it is
    """A phase completed twice before a waiter saw it once."""


class MemoryFault(EmulatorError):  # noqa: N818 - the hardware's word
    """An access outside of every allocation or window."""


class MisalignedAccess(MemoryFault):
    """An address that is no multiple of what its instruction needs."""


class UninitialisedRead(MemoryFault):
    """A read of bytes, columns or registers that nobody wrote."""


class TensorMemoryError(EmulatorError):
    """TMEM that is leaked, freed too early, or used outside of its allocation."""


class EarlyExit(EmulatorError):  # noqa: N818 - names what it is
    """A CTA that ends while asynchronous work may still use its shared memory."""


class RaceError(EmulatorError):
    """Two accesses, one of them a write, that nothing orders."""


class MissingFence(RaceError):  # noqa: N818 - names what it is
    """Accesses that are ordered, but whose proxies no fence joins."""


class Trap(EmulatorError):  # noqa: N818 - the instruction's name
    """The kernel executed `trap`."""


def sentence(*, what: str, where: str, got: object, wanted: object, remedy: str) -> str:
    """One sentence with the five parts, in their fixed order.

    >>> sentence(what="bad row", where="warp 3", got=9, wanted="0 <= row < 8", remedy="fix")
    'bad row in warp 3: got 9, wanted 0 <= row < 8; fix.'
    """
    return f"{what} in {where}: got {got}, wanted {wanted}; {remedy}."
