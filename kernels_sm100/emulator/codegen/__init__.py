"""Turns basic blocks of PTX into Python functions over 32-lane NumPy arrays."""

from importlib import import_module

FAMILIES = (
    "arithmetic", "logic", "conversion", "control", "warp_wide", "memory", "barriers", "copies",
    "tensor",
)  # fmt: skip


def load_families() -> None:
    """Import the modules that register instruction forms."""
    for name in FAMILIES:
        import_module(f"{__name__}.{name}")
