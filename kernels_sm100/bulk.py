"""Additions to global memory, bulk copies without a tensor map, and semaphores."""

from typing import Any

from cutlass import Float32, Int32, Int64, cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op


def _asm(text: str, constraints: str, operands: list[Any], result: Any, loc: Any, ip: Any) -> Any:
    return llvm.inline_asm(
        result,
        operands,
        text,
        constraints,
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )


def _address(pointer: cute.Pointer, loc: Any, ip: Any) -> Any:
    return pointer.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip)


def _global(pointer: cute.Pointer, loc: Any, ip: Any) -> Any:
    return Int64(pointer.toint(loc=loc, ip=ip)).ir_value(loc=loc, ip=ip)


@dsl_user_op
def load_bulk(
    source: cute.Pointer,
    target: cute.Pointer,
    barrier: cute.Pointer,
    size: int,
    *,
    loc: Any = None,
    ip: Any = None,
) -> None:
    """Copy `size` bytes from global to shared memory, which `barrier` counts; by one thread."""
    operands = [
        _address(target, loc, ip),
        _global(source, loc, ip),
        Int32(size).ir_value(loc=loc, ip=ip),
        _address(barrier, loc, ip),
    ]
    text = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
    _asm(text, "r,l,r,r", operands, None, loc, ip)


@dsl_user_op
def store_bulk(
    source: cute.Pointer, target: cute.Pointer, size: int, *, loc: Any = None, ip: Any = None
) -> None:
    """Copy `size` bytes from shared to global memory; by one thread."""
    operands = [
        _global(target, loc, ip),
        _address(source, loc, ip),
        Int32(size).ir_value(loc=loc, ip=ip),
    ]
    text = "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;"
    _asm(text, "l,r,r", operands, None, loc, ip)


@dsl_user_op
def add_bulk(
    source: cute.Pointer, target: cute.Pointer, size: int, *, loc: Any = None, ip: Any = None
) -> None:
    """Add `size` bytes of float32 in shared memory to global memory; by one thread."""
    operands = [
        _global(target, loc, ip),
        _address(source, loc, ip),
        Int32(size).ir_value(loc=loc, ip=ip),
    ]
    text = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [$0], [$1], $2;"
    _asm(text, "l,r,r", operands, None, loc, ip)


@dsl_user_op
def add_four(
    target: cute.Pointer,
    a: Float32,
    b: Float32,
    c: Float32,
    d: Float32,
    *,
    loc: Any = None,
    ip: Any = None,
) -> None:
    """Add four float32 to global memory, each element on its own."""
    values = [x.ir_value(loc=loc, ip=ip) for x in (a, b, c, d)]
    text = "red.relaxed.gpu.global.add.v4.f32 [$0], {$1, $2, $3, $4};"
    _asm(text, "l,f,f,f,f", [_global(target, loc, ip), *values], None, loc, ip)


@dsl_user_op
def load_acquire(source: cute.Pointer, *, loc: Any = None, ip: Any = None) -> Int32:
    """An int32 of global memory, and with it all that was released before it was written."""
    text = "ld.acquire.gpu.global.b32 $0, [$1];"
    return Int32(_asm(text, "=r,l", [_global(source, loc, ip)], T.i32(), loc, ip))


@dsl_user_op
def add_release(target: cute.Pointer, *, loc: Any = None, ip: Any = None) -> None:
    """Add 1 to an int32 of global memory, after all this thread has done or waited for."""
    operands = [_global(target, loc, ip), Int32(1).ir_value(loc=loc, ip=ip)]
    _asm("red.release.gpu.global.add.s32 [$0], $1;", "l,r", operands, None, loc, ip)


@cute.jit
def wait_for_turn(semaphore: cute.Pointer, turn: Int32) -> None:
    """Wait, in one thread, until `semaphore` holds `turn`."""
    now = load_acquire(semaphore)
    while now != turn:
        now = load_acquire(semaphore)
