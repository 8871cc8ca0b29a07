"""Forms of tcgen05: tensor memory and the tensor core."""

import re

from kernels_sm100.emulator.codegen.emitter import Emitter
from kernels_sm100.emulator.codegen.forms import form
from kernels_sm100.emulator.codegen.warp_wide import together
from kernels_sm100.emulator.ptx import Instruction

GROUP = r"\.cta_group::(?P<group>[12])"
SHAPE = r"\.(?P<shape>32x32b|16x64b|16x128b|16x256b|16x32bx2)\.x(?P<count>\d+)"
REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}


@form(rf"tcgen05\.alloc{GROUP}\.sync\.aligned(?:\.shared(?:::cta)?)?\.b32", blocking=True)
def allocate(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Allocate columns; waits until there are enough."""
    together(e)
    target, columns = e.address(i.arguments[0], "u4"), e.read(i.arguments[1], "u4")
    e.put(f"w.line = {i.line}")
    e.put(f"if tmem.allocate(w, {target}, {columns}, {m['group']}, {e.mask}): return BLOCKED")


@form(rf"tcgen05\.dealloc{GROUP}\.sync\.aligned\.b32", convergent=True)
def deallocate(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Give columns back."""
    together(e)
    start, columns = e.read(i.arguments[0], "u4"), e.read(i.arguments[1], "u4")
    e.effect(f"tmem.deallocate(w, {start}, {columns}, {m['group']}, {e.mask})")


@form(rf"tcgen05\.relinquish_alloc_permit{GROUP}\.sync\.aligned", convergent=True)
def relinquish(e: Emitter, _: Instruction, m: re.Match[str]) -> None:
    """Promise to allocate no more."""
    together(e)
    e.effect(f"tmem.relinquish(w, {m['group']})")


def _registers(e: Emitter, operand: str, m: re.Match[str]) -> list[str]:
    names = e.list(operand)
    wanted = REGISTERS[m["shape"]] * int(m["count"])
    if len(names) != wanted:
        e.unknown(f"{wanted} registers")
    return names


@form(rf"tcgen05\.ld\.sync\.aligned{SHAPE}(?P<pack>\.pack::16b)?\.b32", convergent=True)
def load(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Tensor memory to registers."""
    if m["pack"] or m["shape"] == "16x32bx2":
        e.unknown("tcgen05.ld without packing, of shapes 32x32b, 16x64b, 16x128b and 16x256b")
    together(e)
    targets = _registers(e, i.arguments[0], m)
    start = e.address(i.arguments[1], "u4")
    call = f"tmem.load(w, {start}, {m['shape']!r}, {m['count']}, {e.mask})"
    e.results(call, [(target, "u4") for target in targets])
    if e.program.strict_tmem_loads:
        slots = {e.program.slot(target) for target in targets}
        e.put(f"w.unwaited |= {slots!r}")


@form(rf"tcgen05\.st\.sync\.aligned{SHAPE}(?P<unpack>\.unpack::16b)?\.b32", convergent=True)
def store(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Registers to tensor memory."""
    if m["unpack"] or m["shape"] == "16x32bx2":
        e.unknown("tcgen05.st without unpacking, of shapes 32x32b, 16x64b, 16x128b and 16x256b")
    together(e)
    start = e.address(i.arguments[0], "u4")
    values = ", ".join(e.read(source, "u4") for source in _registers(e, i.arguments[1], m))
    e.effect(f"tmem.store(w, {start}, {m['shape']!r}, {m['count']}, ({values},), {e.mask})")


@form(r"tcgen05\.wait::(?P<what>ld|st)\.sync\.aligned", convergent=True)
def wait(e: Emitter, _: Instruction, m: re.Match[str]) -> None:
    """Wait for the warp's own loads or stores of tensor memory."""
    together(e)
    e.effect(f"tmem.wait(w, {m['what']!r})")


@form(r"tcgen05\.fence::(?P<what>before_thread_sync|after_thread_sync)")
def fence(e: Emitter, _: Instruction, m: re.Match[str]) -> None:
    """Order asynchronous tcgen05 work against thread synchronisation."""
    e.effect(f"tmem.fence(w, {m['what']!r})")


@form(
    rf"tcgen05\.commit{GROUP}\.mbarrier::arrive::one(?P<space>\.shared::cluster)?"
    r"(?P<multi>\.multicast::cluster)?\.b64"
)
def commit(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Arrive at an mbarrier when all earlier tcgen05 work of this thread is complete."""
    name = re.match(r"\[\s*(%?[\w$]+)", i.arguments[0])
    wide = name is not None and e.is_register(name[1]) and e.bits_of(name[1]) == 64
    place = e.address(i.arguments[0], "u8" if wide else "u4")
    place = e.let(f"generic.to_shared({place})") if wide else place
    ctas = e.read(i.arguments[1], "u4") if m["multi"] else "None"
    e.effect(f"umma.commit(w, {place}, {ctas}, {m['group']}, {e.mask})")


@form(
    rf"tcgen05\.mma{GROUP}\.kind::(?P<kind>f16|tf32)"
    r"(?P<collector>\.collector::a::(?:fill|use|lastuse|discard))?"
)
def multiply(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """D = A B + D, asynchronously; A from shared memory or tensor memory."""
    from_tmem = i.arguments[1].startswith("[")
    d = e.address(i.arguments[0], "u4")
    a = e.address(i.arguments[1], "u4") if from_tmem else e.read(i.arguments[1], "u8")
    b, description = e.read(i.arguments[2], "u8"), e.read(i.arguments[3], "u4")
    rest = list(i.arguments[4:])
    disabled = "None"
    if rest and rest[0].startswith("{"):
        lanes = ", ".join(e.read(word, "u4") for word in e.list(rest.pop(0)))
        disabled = f"({lanes},)"
    accumulate = e.read(rest.pop(0), "p") if rest else e.read("1", "p")
    scale = 0
    if rest:
        literal = e.immediate(rest.pop(0), "u4")
        if literal is None:
            e.unknown("scale-input-d as a literal")
        scale = int(literal[0])
    e.effect(
        f"umma.multiply(w, {d}, {a}, {b}, {description}, {disabled}, {accumulate}, {scale}, "
        f"{e.mask}, kind={m['kind']!r}, group={m['group']}, from_tmem={from_tmem})"
    )


@form(
    rf"tcgen05\.cp{GROUP}\.(?P<shape>128x256b|4x256b|128x128b|64x128b\.warpx2::(?:02_13|01_23)"
    r"|32x128b\.warpx4)"
)
def copy(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Shared memory to tensor memory, asynchronously."""
    target, source = e.address(i.arguments[0], "u4"), e.read(i.arguments[1], "u8")
    e.effect(f"umma.copy(w, {target}, {source}, {m['shape']!r}, {m['group']}, {e.mask})")
