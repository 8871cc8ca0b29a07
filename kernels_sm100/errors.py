"""The errors of kernels_sm100, and the one sentence they are written in.

Every message has five parts: what is wrong, where, what came, what was wanted and what to do. The
package does not import maskplan: it takes tensors.
"""


class KernelError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(KernelError, ValueError):
    """A configuration that no kernel is written for."""


class UnavailableError(KernelError, RuntimeError):
    """A package that is not installed, or a device that is not there."""


class CaptureError(KernelError, RuntimeError):
    """Host code that cannot be run, or a launch that cannot be captured."""


class EmulatorError(KernelError, RuntimeError):
    """A fault of the emulated program, or an instruction that the emulator does not know."""


def sentence(*, what: str, where: str, got: object, wanted: object, remedy: str) -> str:
    """One sentence with the five parts, in their fixed order."""
    return f"{what} in {where}: got {got}, wanted {wanted}; {remedy}."
