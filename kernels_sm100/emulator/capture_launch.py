"""`HostLaunch`: what host code handed to cudaLaunchKernelExC, and the `Launch` it means."""

import ctypes
from dataclasses import dataclass
from typing import Any

from kernels_sm100.emulator.launch import Dim3, Launch
from kernels_sm100.emulator.parser import parameter_sizes
from kernels_sm100.errors import CaptureError, sentence

_COOPERATIVE = 2  # cudaLaunchAttributeCooperative
_CLUSTER_DIMENSION = 4  # cudaLaunchAttributeClusterDimension
_PROGRAMMATIC = 6  # cudaLaunchAttributeProgrammaticStreamSerialization
_ATTRIBUTE_BYTES = 72  # u32 id, u32 padding, 64 bytes of value


class LaunchConfig(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLaunch:
    """A launch as host code asked for it.

    Attributes:
        kernel: name of the entry.
        grid: CTAs along x, y and z.
        block: threads along x, y and z.
        cluster: CTAs of a cluster along x, y and z.
        shared_bytes: dynamic shared memory.
        cooperative: whether all CTAs have to be resident at once.
        arguments: address of an array of pointers, one a parameter; valid during the call only.
    """

    kernel: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    shared_bytes: int
    cooperative: bool
    arguments: int

    def to_launch(self, ptx: str) -> Launch:
        """The launch, with the bytes of its parameters copied.

        Args:
            ptx: text of the module that has the kernel; its declarations give the sizes.

        Raises:
            LaunchError: if it has no such kernel.
        """
        pointers = ctypes.cast(self.arguments, ctypes.POINTER(ctypes.c_void_p))
        sizes = parameter_sizes(ptx, self.kernel)
        parameters = [ctypes.string_at(pointers[i] or 0, size) for i, size in enumerate(sizes)]
        return Launch(
            kernel=self.kernel,
            ptx=ptx,
            grid=self.grid,
            block=self.block,
            cluster=self.cluster,
            shared_bytes=self.shared_bytes,
            parameters=tuple(parameters),
            cooperative=self.cooperative,
        )


def _attributes(config: Any) -> dict[int, bytes]:
    found = {}
    for number in range(config.attribute_count):
        raw = ctypes.string_at(config.attributes + number * _ATTRIBUTE_BYTES, _ATTRIBUTE_BYTES)
        found[int.from_bytes(raw[:4], "little")] = raw[8:]
    if unknown := set(found) - {_CLUSTER_DIMENSION, _COOPERATIVE, _PROGRAMMATIC}:
        raise CaptureError(
            sentence(
                what="launch attribute not known",
                where="cudaLaunchKernelExC",
                got=sorted(unknown),
                wanted="cluster dimension, cooperative or programmatic serialization",
                remedy="launch without it",
            )
        )
    return found


def read_launch(config: Any, kernel: str, arguments: int) -> HostLaunch:
    """The launch that a `LaunchConfig` describes.

    Raises:
        CaptureError: for a launch attribute that is not emulated.
    """
    attributes = _attributes(config)
    raw = attributes.get(_CLUSTER_DIMENSION)
    sizes = [int.from_bytes(raw[4 * i : 4 * i + 4], "little") if raw else 1 for i in range(3)]
    return HostLaunch(
        kernel=kernel,
        grid=tuple(config.grid),
        block=tuple(config.block),
        cluster=(sizes[0], sizes[1], sizes[2]),
        shared_bytes=int(config.shared_bytes),
        cooperative=bool(attributes.get(_COOPERATIVE, b"\0")[0]),
        arguments=arguments,
    )
