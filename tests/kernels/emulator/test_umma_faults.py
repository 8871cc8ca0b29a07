"""What may go wrong with an MMA, and which check says so."""

import pytest

from kernels_sm100.errors import (
    BarrierError,
    MemoryFault,
    MissingFence,
    RaceError,
    TensorMemoryError,
    UninitialisedRead,
    UnknownInstruction,
)
from tests.kernels.emulator.products import (
    descriptor,
    from_tmem,
    instruction,
    multiply,
)


@pytest.mark.parametrize("wait", ["before", "never"])
def test_a_in_tensor_memory_needs_the_wait_for_its_stores(wait):
    with pytest.raises(MissingFence, match=r"missing tcgen05\.wait::st, tensor memory column 128"):
        from_tmem(wait=wait)


@pytest.mark.parametrize(
    ("old", "new", "error", "said"),
    [
        ("fence.proxy.async.shared::cta;", "", MissingFence, "missing fence.proxy.async, shared memory"),
        ("W:\n", "bar.sync 0;\nbra SKIP;\nW:\n", RaceError, "read of a write, tensor memory column 0"),
        ("%r11, 0;", "%r11, 1;", UninitialisedRead, "accumulator of an MMA in tensor memory"),
        ("@!%p4 bra WAIT;", "", UnknownInstruction, "tcgen05.mma by several lanes"),
        ("mov.b64 %d31, ", f"mov.b64 %d31, {descriptor(43008, 2, 0, 1024)}; //", MemoryFault, "operand of the tensor core out of bounds"),
        ("tcgen05.mma", "add.u32 %r3, %r3, 0x100000;\ntcgen05.mma", UnknownInstruction, "off lane 0"),
        ("setp.lt.u32 %p3, %r10, 16;", "setp.lt.u32 %p3, %r10, 8;", UninitialisedRead, "MMA operand in shared"),
        ("mov.u32 %r2, 256;", "mov.u32 %r2, 32;", TensorMemoryError, "accumulator of an MMA outside"),
        ("arrive::one.shared::cluster.b64 [%r1+40960]", "arrive::one.shared::cluster.b64 [%r1+40968]",
         BarrierError, "not initialised"),
        ("@%p4 fence.mbarrier_init.release.cluster;\n", "", None, ""),
    ],
)  # fmt: skip
def test_faults(old, new, error, said):
    def edit(text: str) -> str:
        assert old in text
        return text.replace("@!%p6 bra W;", "@!%p6 bra W;\nSKIP:").replace(old, new)

    def go():
        multiply(128, 64, edit=edit)

    if error is None:  # the proxy fence after it publishes the barrier as well
        go()
        return
    with pytest.raises(error) as caught:
        go()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (instruction(192, 64), "M 192"),
        (instruction(128, 24), "N 24"),
        (instruction(128, 64, kind=2), "types (2, 2)"),
        (instruction(128, 64) & ~(3 << 4), "to 0"),
    ],
)
def test_shapes_that_are_refused(word, said):
    with pytest.raises(UnknownInstruction) as caught:
        multiply(128, 64, edit=lambda t: t.replace(str(instruction(128, 64)), str(word)))

    assert said in str(caught.value)


def test_descriptors_that_are_refused():
    good = str(descriptor(1024, 2, 0, 1024))

    for bad in (
        descriptor(1024, 2, 0, 1024) ^ 1 << 46,
        descriptor(1024, 1, 0, 1024),
        int(good) | 1 << 49,
    ):
        with pytest.raises(UnknownInstruction, match="matrix descriptor that is not modelled"):
            multiply(128, 64, edit=lambda t, bad=bad: t.replace(good, str(bad)))
