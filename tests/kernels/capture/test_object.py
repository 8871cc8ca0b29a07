"""Object files: which symbols they need, and what happens where one is missing."""

import pytest

pytest.importorskip("cutlass", reason="object files come from CuTe DSL (extra sm100)")

from kernels_sm100.emulator.capture import HostProgram, export
from kernels_sm100.emulator.capture_object import load_object, undefined_symbols
from kernels_sm100.emulator.capture_runtime import runtime_addresses
from kernels_sm100.errors import CaptureError
from kernels_sm100.launch import compile_kernel
from tests.kernels.tutorial import elementwise


@pytest.fixture(scope="module")
def compiled(compile_cache):
    return compile_kernel(elementwise.build, elementwise.ScaleConfig(), cache=compile_cache)


def test_host_code_needs_the_runtime_and_tvm_ffi(compiled):
    needed = undefined_symbols(compiled.entry.object_file)

    assert {"_cudaLaunchKernelEx", "_cudaLibraryGetKernel", "TVMFFIEnvGetStream"} <= needed
    assert needed == set(runtime_addresses(needed))
    assert "_GLOBAL_OFFSET_TABLE_" not in needed
    assert not any(name.startswith("__tvm_ffi") for name in needed)  # defined there


def test_a_missing_symbol_is_an_error_and_no_abort(compiled):
    raw = compiled.entry.object_file.replace(b"_cudaLaunchKernelEx\0", b"_cudaLaunchKernelXY\0")

    with pytest.raises(CaptureError) as raised:
        HostProgram(raw, compiled.ptx)
    assert str(raised.value).startswith(
        "host code calls functions that are not emulated in load_object: got _cudaLaunchKernelXY, "
        "wanted some of "
    )


def test_a_missing_function_is_named(compiled):
    raw = compiled.entry.object_file
    served = runtime_addresses(undefined_symbols(raw))

    with pytest.raises(
        CaptureError, match="function not found in load_object: got no_such, wanted"
    ):
        load_object(raw, "no_such", served)


@pytest.mark.parametrize(
    "raw",
    [b"", b"MZ" * 64, b"\x7fELF\x01\x01" + bytes(100), b"\x7fELF\x02\x01", "text", None],
)
def test_other_files_are_refused(raw):
    with pytest.raises(
        CaptureError, match="cannot read this object file in undefined_symbols: got"
    ):
        undefined_symbols(raw)


@pytest.mark.parametrize("kept", [64, 2000, 0.5])
def test_part_of_a_file_is_refused(compiled, kept):
    raw = compiled.entry.object_file
    part = raw[: int(len(raw) * kept) if kept < 1 else kept]

    with pytest.raises(CaptureError) as raised:
        HostProgram(part, compiled.ptx)
    assert str(raised.value) == (
        f"cannot read this object file in undefined_symbols: got {len(part)} bytes of one that is "
        "longer or damaged, wanted a 64-bit little-endian ELF object; pass the bytes that the "
        "compiled function exports."
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("xy", "no sequence of names in names: got 'xy', wanted NAMES; pass a tuple of them."),
        (None, "no sequence of names in names: got None, wanted NAMES; pass a tuple of them."),
        (("x", "x"), "argument without a name in names[1]: got 'x', wanted NAMES; name EACH."),
        ((1, 2), "argument without a name in names[0]: got 1, wanted NAMES; name EACH."),
    ],
)
def test_names_of_arguments_are_checked(compiled, names, said):
    with pytest.raises(CaptureError) as raised:
        HostProgram(compiled.entry.object_file, compiled.ptx, names)
    said = said.replace("NAMES", "names of its arguments, no two alike")
    assert str(raised.value) == said.replace("EACH", "each argument anew, in its order")


def test_ptx_of_a_program_is_text(compiled):
    with pytest.raises(CaptureError) as raised:
        HostProgram(compiled.entry.object_file, compiled.ptx.encode())
    assert str(raised.value) == (
        "PTX that is no text in HostProgram: got a value of type bytes, wanted a str; decode it."
    )


def test_what_cannot_be_exported_is_refused():
    with pytest.raises(CaptureError) as raised:
        export(compile_kernel)
    assert str(raised.value) == (
        "function that cannot be exported in export: got a value of type function, wanted "
        "what cute.compile returns; compile it, with --enable-tvm-ffi."
    )
