"""Launches that no driver would take, and arguments that are none, each refused in a sentence."""

import numpy as np
import pytest

from kernels_sm100.emulator import GlobalMemory, Launch, emulate
from kernels_sm100.errors import LaunchError
from tests.kernels.emulator.snippet import ptx

TEXT = ptx("", pointers=1, maps=1)
POINTER, MAP = bytes(8), bytes(128)


def launch(**changes):
    options = {"kernel": "k", "ptx": TEXT, "grid": (1, 1, 1), "block": (32, 1, 1)}
    return Launch(**({**options, "parameters": (POINTER, MAP)} | changes))


def refusal(given=None, memory=None, **options):
    """The text of the error."""
    given, memory = (
        launch() if given is None else given,
        GlobalMemory() if memory is None else memory,
    )
    with pytest.raises(LaunchError) as caught:
        emulate(given, memory, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"block": (1025, 1, 1)}, "impossible block"),
        ({"block": (64, 32, 1)}, "impossible block"),
        ({"block": (-2, -16, 1)}, "impossible block"),
        (
            {"block": (1, 1, 128)},
            "impossible block in the launch: got (1, 1, 128), wanted (x, y, z) of 1 to (1024, 1024, 64)",
        ),
        ({"grid": (0, 1, 1)}, "impossible grid in the launch: got (0, 1, 1), wanted (x, y, z)"),
        ({"grid": (1, 65_536, 1)}, "impossible grid"),
        ({"grid": (1, 1)}, "impossible grid"),
        ({"grid": (1.0, 1, 1)}, "impossible grid"),
        ({"grid": 1}, "impossible grid"),
        ({"cluster": (0, 1, 1)}, "impossible cluster"),
        ({"shared_bytes": -1}, "impossible shared memory"),
        ({"grid": (3, 1, 1), "cluster": (2, 1, 1)}, "grid that clusters do not divide"),
        ({"shared_bytes": 240_000}, "too much shared memory"),
        ({"grid": (149, 1, 1), "cooperative": True}, "cooperative grid that is not resident"),
    ],
)
def test_shapes_of_launches_are_checked(changes, said):
    assert refusal(launch(**changes)).startswith(said)


@pytest.mark.parametrize(
    ("parameters", "what", "got"),
    [
        ((), "too few parameters", "0 of [] bytes"),
        ((POINTER,), "too few parameters", "1 of [8] bytes"),
        ((POINTER, MAP, b"1"), "too many parameters", "3 of [8, 128, 1] bytes"),
        ((MAP, POINTER), "parameters of other sizes", "2 of [128, 8] bytes"),
        ((memoryview(np.zeros(8, "u8")), MAP), "parameters of other sizes", "2 of [64, 128] bytes"),
    ],
)
def test_parameters_have_the_number_and_the_sizes_of_the_kernel_s(parameters, what, got):
    assert refusal(launch(parameters=parameters)) == (
        f"{what} in the launch: got {got}, wanted 2 for 'k': p0 of 8, map0 of 128 bytes; pass the "
        "bytes of each parameter that the PTX declares, in order."
    )


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (None, "parameters that are no tuple in the launch: got None of type NoneType"),
        (POINTER, f"parameters that are no tuple in the launch: got {POINTER!r} of type bytes"),
        (
            (POINTER, 5),
            "parameter that is no bytes in parameter 1 of the launch: got 5 of type int",
        ),
        (
            ("x", MAP),
            "parameter that is no bytes in parameter 0 of the launch: got 'x' of type str",
        ),
    ],
)
def test_parameters_are_bytes(parameters, said):
    assert refusal(launch(parameters=parameters)) == (
        f"{said}, wanted a tuple of bytes, one entry a parameter; pass "
        "(array.address.to_bytes(8, 'little'), struct.pack('<f', number)), say."
    )


def test_parameters_may_be_any_bytes():
    emulate(launch(parameters=[bytearray(8), memoryview(MAP)]), GlobalMemory())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"ptx": b"ret;"},
            "PTX that is no text in the launch: got b'ret;' of type bytes, wanted a str; decode it.",
        ),
        (
            {"kernel": ["k"]},
            (
                "kernel that is no name in the launch: got ['k'] of type list, wanted a str; pass the "
                "name of an .entry of the PTX."
            ),
        ),
        (
            {"kernel": "z"},
            (
                "kernel that the module does not have in the PTX: got 'z', wanted one of k; pass the "
                "PTX that the kernel was compiled to."
            ),
        ),
        (
            {"shared_bytes": 1.5},
            (
                "shared_bytes that is no integer in the launch: got 1.5 of type float, wanted an integer; "
                "pass an int."
            ),
        ),
    ],
)
def test_what_a_launch_holds_is_checked(changes, said):
    assert refusal(launch(**changes)) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"schedule": "x"},
            (
                "unknown schedule in emulate: got 'x', wanted one of round_robin, random, lazy, "
                "random_eager; pick one."
            ),
        ),
        (
            {"seed": "x"},
            "seed that is no integer in emulate: got 'x' of type str, wanted an integer; pass an int.",
        ),
        (
            {"ctas_resident": 2.5},
            (
                "ctas_resident that is no integer in emulate: got 2.5 of type float, wanted an integer; "
                "pass an int."
            ),
        ),
        (
            {"ctas_resident": 0},
            (
                "fewer resident CTAs than a cluster in the launch: got 0, wanted at least 1; correct the "
                "launch."
            ),
        ),
        (
            {"strict_tmem_loads": []},
            (
                "strict_tmem_loads that is no bool in emulate: got [] of type list, wanted True or False; "
                "pass one of these."
            ),
        ),
        (
            {"races": "no"},
            (
                "races that is no bool in emulate: got 'no' of type str, wanted True or False; pass one of "
                "these."
            ),
        ),
        (
            {"given": GlobalMemory},
            (
                f"no launch in emulate: got {repr(GlobalMemory)[:40]}... of type type, wanted a Launch; "
                "pass the launch first, then the memory."
            ),
        ),
        (
            {"memory": [1]},
            (
                "no device memory in emulate: got [1] of type list, wanted a GlobalMemory; make "
                "GlobalMemory(), and add to it each array that the kernel may touch."
            ),
        ),
    ],
)
def test_arguments_of_emulate_are_checked(options, said):
    assert refusal(**options) == said


def test_numbers_may_be_of_any_integer_type():
    emulate(
        launch(), GlobalMemory(), schedule="random", seed=np.int64(3), ctas_resident=np.int32(1)
    )
