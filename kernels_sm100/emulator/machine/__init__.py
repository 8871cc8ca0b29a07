"""The machine: warps, memories, barriers and asynchronous engines that generated code calls."""
