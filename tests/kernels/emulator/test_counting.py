"""Instructions by warp, counted by hand for a kernel whose warps take different ways."""

from kernels_sm100.emulator import GlobalMemory, Launch, emulate
from kernels_sm100.emulator.counting import by_warp

PTX = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k()
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 32;
    @%p1 bra DONE;
    mov.u32 %r2, 1;
    add.s32 %r3, %r1, %r2;
DONE:
    ret;
}
"""


def test_instructions_by_warp():
    launch = Launch(kernel="k", ptx=PTX, grid=(2, 1, 1), block=(64, 1, 1))
    report = emulate(launch, GlobalMemory())

    # Two CTAs: setp, bra and ret in both warps, add in the second.
    assert by_warp(launch, report) == {0: 6, 1: 8}
    assert by_warp(launch, report, without=()) == {0: 8, 1: 12}
    assert sum(by_warp(launch, report, without=()).values()) == report.instructions
