"""What no driver would launch: arguments of `emulate`, and launches, refused in a sentence."""

from math import prod
from operator import index
from typing import Any

from kernels_sm100.emulator.global_memory import GlobalMemory
from kernels_sm100.emulator.launch import SCHEDULES, Launch
from kernels_sm100.emulator.ptx import Kernel
from kernels_sm100.errors import LaunchError, sentence

MOST_SHARED = 232_448
MOST_THREADS = 1024
# Along x, y and z.
MOST = {
    "grid": ((1 << 31) - 1, 65_535, 65_535),
    "block": (MOST_THREADS, MOST_THREADS, 64),
    "cluster": (16, 16, 16),
}
_KERNEL = "pass the name of an .entry of the PTX"
_BYTES = (bytes, bytearray, memoryview)
# What is wanted of parameters, and what to do.
_PARAMETERS = (
    "a tuple of bytes, one entry a parameter",
    "pass (array.address.to_bytes(8, 'little'), struct.pack('<f', number)), say",
)


def _refuse(
    what: str,
    got: object,
    wanted: object,
    remedy: str = "correct the launch",
    *,
    where: str = "the launch",
) -> LaunchError:
    return LaunchError(sentence(what=what, where=where, got=got, wanted=wanted, remedy=remedy))


def _typed(value: object) -> str:
    """`value` in a few letters, with its type."""
    text = repr(value)
    return f"{text[:40]}{'...' * (len(text) > 40)} of type {type(value).__name__}"


def integer(value: Any, name: str, *, where: str = "emulate") -> int:
    """`value` as an int.

    Raises:
        LaunchError: if it is none.
    """
    try:
        return index(value)
    except TypeError:
        what, remedy = f"{name} that is no integer", "pass an int"
        raise _refuse(what, _typed(value), "an integer", remedy, where=where) from None


def check_call(launch: Any, memory: Any, schedule: Any, **flags: Any) -> None:
    """Check the types of what `emulate` is given, and of what a launch holds.

    Raises:
        LaunchError: naming the first that is wrong.
    """
    where = "emulate"
    if not isinstance(launch, Launch):
        remedy = "pass the launch first, then the memory"
        raise _refuse("no launch", _typed(launch), "a Launch", remedy, where=where)
    if not isinstance(memory, GlobalMemory):
        remedy = "make GlobalMemory(), and add to it each array that the kernel may touch"
        raise _refuse("no device memory", _typed(memory), "a GlobalMemory", remedy, where=where)
    if schedule not in SCHEDULES:
        wanted = f"one of {', '.join(SCHEDULES)}"
        raise _refuse("unknown schedule", repr(schedule), wanted, "pick one", where=where)
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            what, wanted = f"{name} that is no bool", "True or False"
            raise _refuse(what, _typed(flag), wanted, "pass one of these", where=where)
    if not isinstance(launch.kernel, str):
        raise _refuse("kernel that is no name", _typed(launch.kernel), "a str", _KERNEL)
    if not isinstance(launch.ptx, str):
        raise _refuse("PTX that is no text", _typed(launch.ptx), "a str", "decode it")
    integer(launch.shared_bytes, "shared_bytes", where="the launch")


def parameter_buffer(launch: Launch, kernel: Kernel) -> bytes:
    """The bytes of a launch's parameters, each where `kernel` reads it.

    Raises:
        LaunchError: for too few or too many, or one that is not the bytes of its parameter.
    """
    given: Any = launch.parameters
    if not isinstance(given, (tuple, list)):
        raise _refuse("parameters that are no tuple", _typed(given), *_PARAMETERS)
    for number, value in enumerate(given):
        if not isinstance(value, _BYTES):
            where = f"parameter {number} of the launch"
            raise _refuse("parameter that is no bytes", _typed(value), *_PARAMETERS, where=where)
    declared = list(kernel.parameters.values())
    values = [bytes(value) for value in given]
    sizes = [len(value) for value in values]
    if sizes != [variable.size for variable in declared]:
        what = "parameters of other sizes"
        if len(sizes) != len(declared):
            what = f"too {'few' if len(sizes) < len(declared) else 'many'} parameters"
        wanted = ", ".join(f"{variable.name} of {variable.size}" for variable in declared)
        raise _refuse(
            what,
            f"{len(sizes)} of {sizes} bytes",
            f"{len(declared)} for {kernel.name!r}{f': {wanted} bytes' if declared else ''}",
            "pass the bytes of each parameter that the PTX declares, in order",
        )
    buffer = bytearray(kernel.parameter_bytes)
    for variable, value in zip(declared, values, strict=True):
        buffer[variable.offset : variable.offset + variable.size] = value
    return bytes(buffer)


def _is_shape(value: Any, most: tuple[int, ...]) -> bool:
    """Whether `value` is a size along each of three axes."""
    if not isinstance(value, tuple) or len(value) != len(most):
        return False
    return all(isinstance(v, int) and 1 <= v <= m for v, m in zip(value, most, strict=True))


def check_limits(launch: Launch, *, dynamic_start: int, resident: int) -> None:
    """Check the shape of a launch, and its shared memory.

    Args:
        launch: the launch.
        dynamic_start: where dynamic shared memory begins, behind that of the kernel.
        resident: CTAs that run side by side.

    Raises:
        LaunchError: naming the first limit that it exceeds.
    """
    for name, most in MOST.items():
        value = getattr(launch, name)
        if not _is_shape(value, most):
            raise _refuse(f"impossible {name}", value, f"(x, y, z) of 1 to {most}")
    if prod(launch.block) > MOST_THREADS:
        raise _refuse("impossible block", launch.block, f"1 to {MOST_THREADS} threads")
    if any(g % c for g, c in zip(launch.grid, launch.cluster, strict=True)):
        raise _refuse(
            "grid that clusters do not divide", launch.grid, f"multiples of {launch.cluster}"
        )
    if launch.shared_bytes < 0:
        raise _refuse("impossible shared memory", launch.shared_bytes, "at least 0 bytes")
    shared = dynamic_start + launch.shared_bytes
    if shared > MOST_SHARED + 1024:
        raise _refuse("too much shared memory", f"{shared - 1024} bytes", f"at most {MOST_SHARED}")
    size, total = prod(launch.cluster), prod(launch.grid)
    if launch.cooperative and total > resident:
        raise _refuse("cooperative grid that is not resident", total, f"at most {resident}")
    if resident < size:
        raise _refuse("fewer resident CTAs than a cluster", resident, f"at least {size}")
