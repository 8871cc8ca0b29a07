"""CuTe-DSL attention kernels for SM100, and the emulator that proves them without one.

The package takes tensors and plain arrays and never imports maskplan. Importing it loads nothing
heavy; `kernels_sm100.emulator` needs numpy only.
"""
