"""What may go wrong with TMA, and which check says so."""

import pytest

from kernels_sm100.emulator.machine.tensor_map import TensorMap, encode
from kernels_sm100.errors import (
    BarrierError,
    MemoryFault,
    MisalignedAccess,
    MissingFence,
    RaceError,
    TensorMapError,
    UninitialisedRead,
)
from tests.kernels.emulator.boxes import DUMP, LOAD, SETUP, STORE, WAIT, load_box, sample, store_box
from tests.kernels.emulator.snippet import aligned, run


@pytest.mark.parametrize(
    ("old", "new", "error", "said"),
    [
        ("[%r1], [%d20", "[%r1+64], [%d20", MisalignedAccess, "a multiple of 128"),
        ("[%r1], [%d20", "[%r1+20096], [%d20", MemoryFault, "shared memory access by TMA"),
        (".2d.", ".3d.", TensorMapError, "tensor map of another rank"),
        ("{0, 0}", "{0, 0, 0}", TensorMapError, "rank 2 with 3 coordinates"),
        (
            "%d20, map0;",
            "%d20, map0;\nadd.s64 %d20, %d20, 32;",
            MisalignedAccess,
            "misaligned tensor map",
        ),
    ],
)
def test_faults_of_loads(old, new, error, said):
    body = SETUP + LOAD.replace("RANK", "2").replace("CORNER", "0, 0") + WAIT

    with pytest.raises(error) as caught:
        run(
            body.replace(old, new).replace("BYTES", "512"),
            aligned((512,)),
            sample((4, 32), "f4"),
            maps=((1, "f32", (32, 4), 0),),
            shared=20480,
        )

    assert said in str(caught.value)


def test_a_tensor_map_beyond_its_allocation():
    tensor = sample((4, 32), "f4")
    claimed = TensorMap(tensor.ctypes.data, "f32", (32, 8), (4, 128), (32, 8), 0)

    with pytest.raises(MemoryFault, match="access by TMA out of bounds"):
        run(
            (SETUP + LOAD.replace("RANK", "2").replace("CORNER", "0, 0")).replace("BYTES", "1024"),
            aligned((1024,)),
            tensor,
            maps=(encode(claimed),),
            shared=20480,
        )


def test_tensors_that_nobody_wrote():
    with pytest.raises(UninitialisedRead, match="load by TMA of global memory that nobody wrote"):
        load_box(sample((16, 64), "f4"), "f32", (32, 4), (0, 0), unwritten=(1,))
    with pytest.raises(UninitialisedRead, match="store by TMA of shared memory that nobody wrote"):
        store_box(
            STORE + " [%d20, {0, 0}], [%r1+2048];\n//",
            sample((64, 64), "f4"),
            "f32",
            sample((16, 32), "f4"),
            (32, 16),
            (0, 0),
        )


def test_reading_without_the_wait_is_a_race():
    tensor = sample((16, 64), "f4")
    body = SETUP + LOAD.replace("RANK", "2").replace("CORNER", "0, 0") + DUMP

    with pytest.raises(RaceError, match="race: read of a write, shared memory at 0x400"):
        run(
            body.replace("BYTES", "512"),
            aligned((512,)),
            tensor,
            maps=((1, "f32", (32, 4), 0),),
            shared=20480,
        )
    with pytest.raises(UninitialisedRead):
        run(body.replace("BYTES", "512"), aligned((512,)), tensor, maps=((1, "f32", (32, 4), 0),),
            shared=20480, races=False, schedule="lazy")  # fmt: skip


def test_global_stores_need_a_fence_before_tma_reads_them():
    body = (
        "mad.wide.u32 %d9, %r0, 4, %d1;\nst.global.b32 [%d9], %r0;\nFENCE\n"
        + SETUP
        + LOAD.replace("RANK", "2").replace("CORNER", "0, 0")
        + WAIT
    ).replace("BYTES", "512")
    options = {"maps": ((1, "f32", (32, 4), 0),), "shared": 20480}

    run(
        body.replace("FENCE", "fence.proxy.async.global;"),
        aligned((512,)),
        sample((4, 32), "f4"),
        **options,
    )
    with pytest.raises(MissingFence, match=r"missing fence.proxy.async, byte 0 of 'a1'"):
        run(body.replace("FENCE", ""), aligned((512,)), sample((4, 32), "f4"), **options)


def test_a_box_over_a_barrier():
    body = SETUP + LOAD.replace("RANK", "2").replace("CORNER", "0, 0")

    with pytest.raises(BarrierError, match="store over an mbarrier"):
        run(
            body.replace("[%r1], [%d20", "[%r1+16128], [%d20").replace("BYTES", "512"),
            aligned((512,)),
            sample((4, 32), "f4"),
            maps=((1, "f32", (32, 4), 0),),
            shared=20480,
        )
