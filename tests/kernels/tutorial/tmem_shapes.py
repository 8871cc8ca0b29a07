"""PTX that stores registers to tensor memory in one shape and reads them back in another.

CuTe picks shapes by itself, so this is written by hand: four warps fill `columns` columns of their
32 lanes with 1 + 1000 lane + column (shape 32x32b), then store in `shape`, or load in it.
"""

from kernels_sm100.emulator import Launch

# Columns that a x1 covers, registers a thread of x1 holds.
SHAPES = {"32x32b": (1, 1), "16x64b": (2, 1), "16x128b": (4, 2), "16x256b": (8, 4)}
WARPS = 4


def columns_of(shape: str, number: int) -> int:
    """Columns that `shape`.x`number` covers."""
    return SHAPES[shape][0] * number


def element(shape: str, lane: int, register: int) -> tuple[int, int]:
    """(row, column) of a register of a thread, from the figures of the PTX manual, 9.7.16.2.

    The 16-row shapes are matrices of 8 rows side by side, as mma fragments are: a thread holds what
    lies in row lane / 4, and in pairs of columns.
    """
    if shape == "32x32b":
        return lane, register
    group, pair = divmod(lane, 4)
    if shape == "16x64b":
        # Lanes 4g and 4g + 2 hold row g, lanes 4g + 1 and 4g + 3 row g + 8.
        return group + 8 * (pair % 2), pair // 2 + 2 * register
    if shape == "16x128b":
        half, upper = divmod(register, 2)
        return group + 8 * upper, pair + 4 * half
    quarter, place = divmod(register, 4)
    return group + 8 * (place // 2), 2 * pair + place % 2 + 8 * quarter


def ptx(shape: str, number: int, *, store: bool, row: int = 0) -> str:
    """The kernel: `out` is uint32 [128, columns] after a store, [128, registers] after a load.

    Args:
        shape: of the instruction that is tried.
        number: its repetition, .x1 to .x128.
        store: try tcgen05.st; else tcgen05.ld.
        row: first lane within a warp's 32: 0, or 16 for the shapes of 16 rows.
    """
    columns = columns_of(shape, number)
    count = SHAPES[shape][1] * number
    allocated = max(32, 1 << (columns - 1).bit_length())
    registers = ", ".join(f"%v{i}" for i in range(count))
    lines = [f"mad.lo.u32 %f{i}, %lane, 1000, {1 + i};" for i in range(columns)] + _pieces(
        "st", "32x32b", columns, "%taddr", "%f"
    )
    if store:
        lines += [f"mad.lo.u32 %v{i}, %thread, 4096, {i};" for i in range(count)]
        lines += [f"tcgen05.st.sync.aligned.{shape}.x{number}.b32 [%tried], {{{registers}}};"]
        lines += ["tcgen05.wait::st.sync.aligned;"]
        lines += _pieces("ld", "32x32b", columns, "%taddr", "%f")
        width, name = columns, "%f"
    else:
        lines += [f"tcgen05.ld.sync.aligned.{shape}.x{number}.b32 {{{registers}}}, [%tried];"]
        width, name = count, "%v"
    lines += ["tcgen05.wait::ld.sync.aligned;", f"mad.wide.u32 %out, %thread, {4 * width}, %out;"]
    lines += [f"st.global.u32 [%out+{4 * i}], {name}{i};" for i in range(width)]
    body = "\n    ".join(lines)
    return f"""
.version 8.8
.target sm_100a
.address_size 64
.visible .entry shapes(.param .u64 result)
.reqntid {32 * WARPS}, 1, 1
{{
    .reg .pred %first;
    .reg .b32 %thread, %lane, %warp, %base, %taddr, %tried, %shift, %holder_address;
    .reg .b64 %out;
    .reg .b32 %f<{max(columns, 1)}>;
    .reg .b32 %v<{max(count, 1)}>;
    .shared .align 16 .b32 holder;
    mov.u32 %thread, %tid.x;
    ld.param.u64 %out, [result];
    mov.u32 %lane, %thread;
    shr.u32 %warp, %thread, 5;
    mov.u32 %holder_address, holder;
    setp.eq.u32 %first, %warp, 0;
    @!%first bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%holder_address], {allocated};
ALLOCATED:
    bar.sync 0;
    ld.shared.u32 %base, [%holder_address];
    shl.b32 %shift, %warp, 21;
    add.u32 %taddr, %base, %shift;
    add.u32 %tried, %taddr, {row << 16};
    {body}
    bar.sync 0;
    @!%first bra FREED;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, {allocated};
FREED:
    ret;
}}
"""


def _pieces(kind: str, shape: str, columns: int, address: str, name: str) -> list[str]:
    """Loads or stores of `columns` columns, 1 to 64 at a time, and the wait behind stores."""
    lines, at = [], 0
    while at < columns:
        size = min(64, 1 << ((columns - at).bit_length() - 1))
        registers = ", ".join(f"{name}{at + i}" for i in range(size))
        if kind == "st":
            lines.append(
                f"tcgen05.st.sync.aligned.{shape}.x{size}.b32 [{address}+{at}], {{{registers}}};"
            )
        else:
            lines.append(
                f"tcgen05.ld.sync.aligned.{shape}.x{size}.b32 {{{registers}}}, [{address}+{at}];"
            )
        at += size
    return [*lines, "tcgen05.wait::st.sync.aligned;"] if kind == "st" else lines


def launch(text: str, out_address: int) -> Launch:
    """The launch of one of these kernels."""
    return Launch(
        kernel="shapes", ptx=text, grid=(1, 1, 1), block=(32 * WARPS, 1, 1),
        parameters=(out_address.to_bytes(8, "little"),),
    )  # fmt: skip
