"""Host code runs here, launches are those it makes, and errors come back as they were raised."""

import threading

import numpy as np
import pytest
import torch

pytest.importorskip("cutlass", reason="host code comes from CuTe DSL (extra sm100)")

from kernels_sm100.emulator import capture_runtime
from kernels_sm100.emulator.capture import HostProgram
from kernels_sm100.errors import CaptureError, LaunchError
from kernels_sm100.launch import compile_kernel
from tests.kernels.tutorial import elementwise


@pytest.fixture(scope="module")
def program(compile_cache):
    config = elementwise.ScaleConfig()
    return compile_kernel(elementwise.build, config, cache=compile_cache).host_program


def record(program, *arguments, **keywords):
    heard = []
    program(*arguments, on_launch=lambda *launch: heard.append(launch), **keywords)
    return heard


@pytest.mark.parametrize("length", [1, 128, 129, 1000])
def test_a_launch_is_the_one_host_code_makes(program, length):
    x, y = torch.zeros(length), np.zeros(length, np.float32)
    ((launch, memory),) = record(program, x, y, unwritten=["y"])

    assert "Scale" in launch.kernel or "kernel" in launch.kernel
    assert launch.ptx is program.ptx
    assert launch.grid == (-(-length // 128), 1, 1)
    assert launch.block == (128, 1, 1)
    assert launch.cluster == (1, 1, 1)
    assert launch.shared_bytes == 0
    for raw, address in zip(launch.parameters, (x.data_ptr(), y.ctypes.data), strict=True):
        assert int.from_bytes(raw[:8], "little") == address
        assert int.from_bytes(raw[8:12], "little") == length
    assert {allocation.name for allocation in memory} == {"x", "y"}


def test_each_call_launches_anew(program):
    heard = [record(program, torch.zeros(n), torch.zeros(n))[0][0] for n in (5, 300, 5)]

    assert [launch.grid[0] for launch in heard] == [1, 3, 1]
    assert len({launch.kernel for launch in heard}) == 1


def test_host_code_checks_its_arguments(program):
    with pytest.raises(ValueError, match="expected to match"):
        record(program, torch.zeros(4), torch.zeros(5))
    with pytest.raises(TypeError, match="Expects 2 parameters"):
        record(program, torch.zeros(4))
    with pytest.raises(ValueError, match="expected dtype=float32"):
        record(program, torch.zeros(4, dtype=torch.float16), torch.zeros(4))
    assert len(record(program, torch.zeros(4), torch.zeros(4))) == 1  # and goes on


@pytest.mark.parametrize("error", [KeyError("mine"), KeyboardInterrupt(), CaptureError("no")])
def test_what_a_handler_raises_comes_back(program, error):
    def fail(*_):
        raise error

    with pytest.raises(type(error)) as raised:
        program(torch.zeros(4), torch.zeros(4), on_launch=fail)
    assert raised.value is error
    assert len(record(program, torch.zeros(4), torch.zeros(4))) == 1  # nothing is left behind


def test_a_ptx_without_the_kernel_is_named(program, compile_cache):
    config = elementwise.ScaleConfig()
    compiled = compile_kernel(elementwise.build, config, cache=compile_cache)
    other = HostProgram(compiled.entry.object_file, ".version 8.8\n.entry other()\n{\nret;\n}\n")

    with pytest.raises(
        LaunchError, match=r"does not have in the PTX: got '\w+', wanted one of other"
    ):
        record(other, torch.zeros(4), torch.zeros(4))
    assert len(record(program, torch.zeros(4), torch.zeros(4))) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"on_launch": None},
            (
                "handler that is no function in on_launch: got a value of type NoneType, wanted a "
                "function of a launch and its memory; pass emulate, say."
            ),
        ),
        (
            {"on_launch": print, "unwritten": "y"},
            (
                "no collection of names in unwritten: got 'y', wanted names of arrays; pass them "
                "in a list."
            ),
        ),
        (
            {"on_launch": print, "unwritten": ["z"]},
            (
                "unknown array in memory_of: got unwritten=['z'], wanted names out of ['x', 'y']; "
                "name arrays as they are passed."
            ),
        ),
    ],
)
def test_handlers_and_names_are_checked(program, options, said):
    with pytest.raises(CaptureError) as raised:
        program(torch.zeros(4), torch.zeros(4), **options)
    assert str(raised.value) == said


def test_a_handler_may_call_host_code(program):
    inner = []

    def again(launch, memory):
        del memory
        inner.append(launch)
        inner.extend(launch for launch, _ in record(program, torch.zeros(500), torch.zeros(500)))

    program(torch.zeros(4), torch.zeros(4), on_launch=again)
    assert [launch.grid[0] for launch in inner] == [1, 4]


def test_threads_hear_their_own_launches(program):
    sizes = {}

    def call(blocks):
        heard = [record(program, *[torch.zeros(128 * blocks)] * 2)[0][0] for _ in range(20)]
        sizes[blocks] = {launch.grid[0] for launch in heard}

    threads = [threading.Thread(target=call, args=(blocks,)) for blocks in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == {blocks: {blocks} for blocks in (1, 2, 3, 4)}


def test_a_launch_nobody_listens_to_is_an_error(program):
    from kernels_sm100.emulator.capture_tensor import as_cuda

    with pytest.raises(RuntimeError, match="runtime returned error 719"):
        program._function(as_cuda(torch.zeros(4)), as_cuda(torch.zeros(4)))
    error, capture_runtime._listener.error = capture_runtime._listener.error, None
    assert str(error).startswith("launch outside a capture in cudaLaunchKernelExC: got ")


def test_unknown_attributes_of_a_device_are_refused():
    with pytest.raises(CaptureError, match="device attribute not known in cudaDeviceGetAttribute"):
        capture_runtime._device_attribute([0], 12345, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="would launch on the GPU that is there")
def test_capture_and_the_real_runtime_live_side_by_side(compile_cache, program):
    """Symbols of one are not those of the other, whichever was loaded first."""
    from kernels_sm100.emulator.capture_tensor import as_cuda
    from kernels_sm100.launch.compile import _load_for_device

    compiled = compile_kernel(elementwise.build, elementwise.ScaleConfig(), cache=compile_cache)
    on_device = _load_for_device(compiled.entry.object_file)

    with pytest.raises(RuntimeError, match=r"(?i)cuda"):
        on_device(as_cuda(torch.zeros(4)), as_cuda(torch.zeros(4)))
    assert len(record(program, torch.zeros(4), torch.zeros(4))) == 1
