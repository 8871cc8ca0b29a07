"""Kernels of a few lines for the tests: PTX bodies, run on arrays."""

import numpy as np

from kernels_sm100.emulator import GlobalMemory, Launch, Report, emulate
from kernels_sm100.emulator.machine.tensor_map import TensorMap, encode

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
REGISTERS = """
    .reg .pred %p<64>;
    .reg .b16 %h<64>;
    .reg .b32 %r<512>;
    .reg .b64 %d<128>;
"""


def ptx(body: str, *, pointers: int = 0, maps: int = 0, extra: str = "", before: str = "") -> str:
    """A kernel `k` with pointers in %d0, %d1, ... and tensor maps map0, map1, ...

    %r0 is the thread and %r1 the shared address of the dynamic array `smem`.
    """
    parameters = [f".param .u64 p{i}" for i in range(pointers)]
    parameters += [f".param .align 64 .b8 map{i}[128]" for i in range(maps)]
    loads = "".join(f"    ld.param.u64 %d{i}, [p{i}];\n" for i in range(pointers))
    return (
        f"{HEAD}.extern .shared .align 1024 .b8 smem[];\n{before}"
        f".visible .entry k({', '.join(parameters)}) {extra}\n{{{REGISTERS}{loads}"
        f"    mov.u32 %r0, %tid.x;\n    mov.b32 %r1, smem;\n{body}\n    ret;\n}}\n"
    )


def run(
    body: str,
    *arrays: np.ndarray,
    maps: tuple = (),
    threads: int = 32,
    grid: int = 1,
    cluster: int = 1,
    shared: int = 16384,
    unwritten: tuple[int, ...] = (),
    extra: str = "",
    before: str = "",
    **options,
) -> Report:
    """Run a body on arrays; `maps` are (array number, element type, box, swizzle), or bytes."""
    memory = GlobalMemory()
    places = [
        memory.add(f"a{i}", array, written=i not in unwritten).address
        for i, array in enumerate(arrays)
    ]
    described = [
        one if isinstance(one, bytes) else encode(tensor_map(arrays[one[0]], *one[1:]))
        for one in maps
    ]
    launch = Launch(
        kernel="k",
        ptx=ptx(body, pointers=len(arrays), maps=len(maps), extra=extra, before=before),
        grid=(grid, 1, 1),
        block=(threads, 1, 1),
        cluster=(cluster, 1, 1),
        shared_bytes=shared,
        parameters=(*(p.to_bytes(8, "little") for p in places), *described),
    )
    return emulate(launch, memory, **options)


def tensor_map(array: np.ndarray, kind: str, box: tuple[int, ...], swizzle: int = 0) -> TensorMap:
    """The tensor map of a C-contiguous array; `box` counts dimension 0, the contiguous one, first."""
    return TensorMap(
        address=array.ctypes.data,
        kind=kind,
        size=array.shape[::-1],
        strides=array.strides[::-1],
        box=box,
        swizzle=swizzle,
    )


def aligned(shape: tuple[int, ...], dtype: type = np.uint8, *, to: int = 128) -> np.ndarray:
    """Zeros at an aligned address."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + to, dtype=np.uint8)
    start = -raw.ctypes.data % to
    return raw[start : start + size].view(dtype).reshape(shape)


PREFIX = {0: "%p", 2: "%h", 4: "%r", 8: "%d"}


def apply(instruction: str, *inputs: np.ndarray, out: type | np.dtype) -> np.ndarray:
    """Run one instruction on 32 lanes: `$d` is the result, `$a`, `$b`, `$c`, `$e` and so on are the inputs.

    A boolean array becomes a predicate, and a boolean result comes back as 0 or 1.
    """
    inputs = tuple(np.ascontiguousarray(x) for x in inputs)
    out = np.dtype(out)
    lines, names = [], {}
    for i, value in enumerate(inputs):
        width = 4 if value.dtype.kind == "b" else value.itemsize
        register = f"{PREFIX[max(width, 2)]}{20 + i}"
        lines.append(f"mad.wide.u32 %d{40 + i}, %r0, {width}, %d{i + 1};")
        lines.append(f"ld.global.b{8 * width} {register}, [%d{40 + i}];")
        if value.dtype.kind == "b":
            lines.append(f"setp.ne.b32 %p{20 + i}, {register}, 0;")
            register = f"%p{20 + i}"
        names["abcefg"[i]] = register
    width = 4 if out.kind == "b" else out.itemsize
    names["d"] = "%p10" if out.kind == "b" else f"{PREFIX[max(width, 2)]}10"
    for name, register in names.items():
        instruction = instruction.replace(f"${name}", register)
    lines.append(instruction)
    if out.kind == "b":
        lines.append("selp.b32 %r10, 1, 0, %p10;")
        names["d"] = "%r10"
    lines.append(f"mad.wide.u32 %d50, %r0, {width}, %d0;")
    lines.append(f"st.global.b{8 * width} [%d50], {names['d']};")
    result = np.zeros(32, dtype=np.uint32 if out.kind == "b" else out)
    arrays = [x.astype(np.uint32) if x.dtype.kind == "b" else x for x in inputs]
    run("\n".join(lines), result, *arrays)
    return result.astype(bool) if out.kind == "b" else result
