"""Block-sparse attention kernels for SM100 (Blackwell), and the emulator that proves them."""
