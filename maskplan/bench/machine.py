"""Which machine and which versions a row was measured with."""

import os
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from maskplan.errors import PlanError, sentence

PACKAGES = ("torch", "numba", "triton", "flash-attn-4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A device and the versions that matter; rows are comparable where these are equal.

    Attributes:
        device: "cpu" or "cuda".
        name: of the processor, its threads, or of the GPU.
        versions: of maskplan, Python and the packages that compute.
    """

    device: str
    name: str
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def here(cls, device: str = "auto") -> "Machine":
        """This machine: its processor, or the GPU that torch uses.

        Args:
            device: "cpu", "cuda", or "auto" for the GPU if there is one.

        Raises:
            PlanError: if there is no such device.
        """
        usable = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        if device == "auto":
            device = usable[-1]
        if device not in usable:
            raise PlanError(
                sentence(
                    what="no such device here",
                    where="device",
                    got=repr(device),
                    wanted=" or ".join(map(repr, ("auto", *usable))),
                    remedy="pass one of these",
                )
            )
        name = torch.cuda.get_device_name() if device == "cuda" else _processor()
        return cls(device=device, name=name, versions=_versions())

    def to_json(self) -> dict[str, Any]:
        """As a row keeps it."""
        return asdict(self) | {"versions": dict(self.versions)}

    def __str__(self) -> str:
        return f"{self.name}; " + ", ".join(f"{name} {version}" for name, version in self.versions)


def _versions() -> tuple[tuple[str, str], ...]:
    import maskplan

    found = [("maskplan", maskplan.__version__), ("python", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


def _processor() -> str:
    """The processor's name and how many threads torch uses."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads of {os.cpu_count()} cores"
