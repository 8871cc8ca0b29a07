"""Loads an object file of host code into this process, with no compiler and no linker.

CuTe DSL writes the host side of a kernel (shape checks, tensor maps, the launch) as an ELF object
whose undefined symbols are the CUDA runtime's and TVM-FFI's. LLVM's own loader, which numba brings
along as llvmlite, relocates it; addresses of ours stand for the undefined symbols.

NOTE [Undefined symbols are looked up first]: LLVM ends the process when a symbol cannot be
resolved, so the symbol table is read here, and a missing one is a Python error.
"""

import struct
from collections.abc import Mapping
from typing import Any

from kernels_sm100.errors import CaptureError, sentence

_ELF = b"\x7fELF\x02\x01"  # 64 bit, little endian
_SYMBOL_TABLE = 2  # sh_type of .symtab
_LOADED_BY_LLVM = {"_GLOBAL_OFFSET_TABLE_"}


def undefined_symbols(object_file: bytes) -> set[str]:
    """Names that a 64-bit little-endian ELF object uses and does not define.

    Raises:
        CaptureError: if it is no such object file, or not all of one.
    """
    if not isinstance(object_file, bytes):
        raise _unreadable(f"a value of type {type(object_file).__name__}")
    if object_file[:6] != _ELF or len(object_file) < 64:
        raise _unreadable(f"{len(object_file)} bytes that begin with {object_file[:6]!r}")
    try:
        return _undefined(object_file)
    except (struct.error, IndexError, ValueError) as error:  # what its tables point to is missing
        raise _unreadable(f"{len(object_file)} bytes of one that is longer or damaged") from error


def _unreadable(got: str) -> CaptureError:
    return CaptureError(
        sentence(
            what="cannot read this object file",
            where="undefined_symbols",
            got=got,
            wanted="a 64-bit little-endian ELF object",
            remedy="pass the bytes that the compiled function exports",
        )
    )


def _undefined(object_file: bytes) -> set[str]:
    (table,) = struct.unpack_from("<Q", object_file, 0x28)
    entry_size, count = struct.unpack_from("<HH", object_file, 0x3A)
    sections = [
        # sh_type, sh_offset, sh_size, sh_link
        struct.unpack_from("<4xI16xQQI", object_file, table + number * entry_size)
        for number in range(count)
    ]
    names: set[str] = set()
    for kind, offset, size, link in sections:
        if kind != _SYMBOL_TABLE:
            continue
        strings = sections[link][1]
        for symbol in range(offset + 24, offset + size, 24):  # the first one is null
            name_at, _, _, section = struct.unpack_from("<IBBH", object_file, symbol)
            if section == 0:
                start = strings + name_at
                names.add(object_file[start : object_file.index(b"\0", start)].decode())
    return names - _LOADED_BY_LLVM


def load_object(object_file: bytes, symbol: str, served: Mapping[str, int]) -> tuple[int, Any]:
    """(address of `symbol`, what keeps it mapped) of an object file loaded into this process.

    Args:
        object_file: a relocatable ELF object for this machine.
        symbol: a function it defines.
        served: undefined symbol -> address. Addresses hold for the whole process: the same symbol
            always has to be given the same one.

    Raises:
        CaptureError: if the object needs a symbol that is not served, or lacks `symbol`.
    """
    import llvmlite.binding as llvm  # type: ignore[import-untyped] # it has no stubs

    if missing := sorted(undefined_symbols(object_file) - set(served)):
        raise CaptureError(
            sentence(
                what="host code calls functions that are not emulated",
                where="load_object",
                got=", ".join(missing),
                wanted=f"some of {', '.join(sorted(served))}",
                remedy="add them to kernels_sm100/emulator/capture_runtime.py",
            )
        )
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name, address in served.items():
        llvm.add_symbol(name, address)
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True, codemodel="large")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_file))
    engine.finalize_object()
    address = engine.get_function_address(symbol)
    if not address:
        raise CaptureError(
            sentence(
                what="function not found",
                where="load_object",
                got=symbol,
                wanted="a function that the object file defines",
                remedy="pass the name it was exported under",
            )
        )
    return address, engine
