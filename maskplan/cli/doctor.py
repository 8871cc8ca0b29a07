"""`maskplan doctor`: what is installed, which backends work here, and why the others do not."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import torch

import maskplan as mp

PACKAGES = ("torch", "numpy", "numba", "scipy", "safetensors", "typer", "rich")
EXTRAS = (
    "matplotlib",
    "diffusers",
    "triton",
    "flash-attn-4",
    "nvidia-cutlass-dsl",
    "apache-tvm-ffi",
    "sentryward",
)


def doctor() -> None:
    """Say what is installed, which backends work here, and why the others do not."""
    print(f"maskplan {mp.__version__}, Python {platform.python_version()}, {platform.platform()}")
    print("\npackages")
    for name in PACKAGES + EXTRAS:
        print(f"  {name:<20} {_version(name)}")
    print("\nmachine")
    print(f"  {'CPU threads':<20} {torch.get_num_threads()} of {os.cpu_count()} cores")
    print(f"  {'CUDA':<20} {_cuda()}")
    print(f"  {'compiled code':<20} {_cache()}")
    print("\nbackends")
    plan = mp.causal(8, 8, block_size=(4, 4))
    small = torch.zeros(1, 8, 1, 16, device="cpu")
    said = {backend.name: backend.reason for backend in mp.backends(small, small, small, plan)}
    # What does not run in float32 on the CPU may run in bfloat16, or on a GPU.
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        small, plan = small.to(device, torch.bfloat16), plan.to(device)
        for backend in mp.backends(small, small, small, plan):
            said[backend.name] = said[backend.name] and backend.reason
    for name, reason in said.items():
        print(f"  {name:<20} {reason or 'works'}")
    if sys.flags.optimize:
        print("\nPython runs with -O: internal checks are off")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cuda() -> str:
    if not torch.cuda.is_available():
        return "no usable device"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(names)


def _cache() -> str:
    """Where compiled code is kept between processes, if anywhere."""
    from maskplan.tile_pool import count_bits

    place = count_bits.stats.cache_path
    if place is None:
        return "compiled anew in each process: no writable directory (set NUMBA_CACHE_DIR)"
    path = Path(place)
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    writable = "writable" if os.access(existing, os.W_OK) else "read-only"
    return f"kept in {path} ({writable})"
