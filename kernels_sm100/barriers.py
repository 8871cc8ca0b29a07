"""Barriers between warp roles: one arrival a warp, phases as bits.

NOTE [Phase bits]: a barrier is waited for by the parity of its phase, so each waiter keeps one bit
a barrier, flipped at every wait. A CTA works on two Q tiles, and an entry of the walk may skip
either, so their barriers flip at different times. A role keeps the bits of both tiles in one Int32,
bit h for tile h; the same form says which tiles an entry concerns, and which have been seen.
"""

from typing import Any

from cutlass import Boolean, Int32, cute
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import tcgen05


def bit(bits: Any, position: Any) -> Int32:
    """Bit `position` of `bits`, 0 or 1."""
    return (bits >> position) & 1


def has(bits: Any, position: Any) -> Boolean:
    """Whether bit `position` is set."""
    return bit(bits, position) != 0


@cute.jit
def init_all(barrier: cute.Pointer, number: int, arrivals: int) -> None:
    """Initialise `number` barriers that lie next to each other, by one thread."""
    for i in range(number):
        cute.arch.mbarrier_init(barrier + i, arrivals)


@cute.jit
def arrive_warp(barrier: cute.Pointer) -> None:
    """One arrival for a whole warp, after what every lane of it has written."""
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(barrier)


@cute.jit
def arrive_warp_tmem(barrier: cute.Pointer) -> None:
    """`arrive_warp`, with the warp's accesses to tensor memory before it."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)
    arrive_warp(barrier)


@cute.jit
def wait_tmem(barrier: cute.Pointer, phase: Int32) -> None:
    """Wait for a phase, and let no access to tensor memory move before it."""
    cute.arch.mbarrier_wait(barrier, phase)
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)


@cute.jit
def commit(barrier: cute.Pointer) -> None:
    """Arrive once every MMA issued so far is complete."""
    with cute.arch.elect_one():
        tcgen05.commit(barrier)


@cute.jit
def next_slot(slot: Int32, phase: Int32, slots: int) -> tuple[Int32, Int32]:
    """The slot of a ring after `slot`, and the phase it is in."""
    slot += 1
    if slot == slots:
        slot = Int32(0)
        phase ^= 1
    return slot, phase
