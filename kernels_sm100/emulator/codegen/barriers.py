"""Forms of mbarriers, named barriers, cluster barriers and fences."""

import re

from kernels_sm100.emulator.codegen.emitter import Emitter
from kernels_sm100.emulator.codegen.forms import form
from kernels_sm100.emulator.codegen.warp_wide import together
from kernels_sm100.emulator.ptx import Instruction

PLACE = (
    r"(?:\.(?:release|relaxed|acquire))?(?:\.(?:cta|cluster))?"
    r"(?P<space>\.shared(?:::cta|::cluster)?)?"
)


def address(e: Emitter, operand: str, space: str | None) -> str:
    """Address of an mbarrier: shared, or generic without a space."""
    if space:
        return e.address(operand, "u4")
    return e.let(f"generic.to_shared({e.address(operand, 'u8')})")


def guard(e: Emitter, i: Instruction) -> str:
    """Condition under which a blocking instruction runs at all."""
    return f"count_nonzero({e.mask}) and " if i.predicate else ""


@form(r"mbarrier\.init(?P<space>\.shared(?:::cta)?)?\.b64")
def initialise(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Make a barrier of so many arrivals."""
    place = address(e, i.arguments[0], m["space"])
    e.effect(f"mbarrier.initialise(w, {place}, {e.read(i.arguments[1], 'u4')}, {e.mask})")


@form(r"mbarrier\.inval(?P<space>\.shared(?:::cta)?)?\.b64")
def invalidate(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Give the memory of a barrier back."""
    e.effect(f"mbarrier.invalidate(w, {address(e, i.arguments[0], m['space'])}, {e.mask})")


@form(rf"mbarrier\.(?P<what>expect_tx|complete_tx){PLACE}\.b64")
def transactions(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Change the transaction count without arriving."""
    place, count = address(e, i.arguments[0], m["space"]), e.read(i.arguments[1], "u4")
    e.effect(f"mbarrier.{m['what']}(w, {place}, {count}, {e.mask})")


@form(rf"mbarrier\.(?P<what>arrive|arrive_drop)(?P<variant>\.expect_tx|\.noComplete)?{PLACE}\.b64")
def arrive(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Arrive, with a count or after announcing bytes; returns the phase arrived in."""
    first = 0 if i.arguments[0].startswith("[") else 1
    place = address(e, i.arguments[first], m["space"])
    number = e.read(i.arguments[first + 1] if len(i.arguments) > first + 1 else "1", "u4")
    expect = m["variant"] == ".expect_tx"
    drop = m["what"] == "arrive_drop"
    call = f"mbarrier.arrive(w, {place}, {number}, {e.mask}, {expect}, {drop})"
    if first and i.arguments[0] != "_":
        e.results(call, [(i.arguments[0], "u8")])
    else:
        e.effect(call)


@form(rf"mbarrier\.(?P<what>try_wait|test_wait)(?P<parity>\.parity)?{PLACE}\.b64", blocking=True)
def wait(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Wait for a phase; `test_wait` only asks.

    A `try_wait` that would fail blocks instead: its loop would only try again.
    """
    place = address(e, i.arguments[1], m["space"])
    state = e.read(i.arguments[2], "u4" if m["parity"] else "u8")
    test = m["what"] == "test_wait"
    call = f"mbarrier.wait(w, {place}, {state}, {e.mask}, {bool(m['parity'])}, {test})"
    e.put(f"w.line = {i.line}")
    got = e.let(f"{call} if count_nonzero({e.mask}) else False" if i.predicate else call)
    e.put(f"if {got} is None: return BLOCKED")
    e.write(i.arguments[0], f"np.full(32, {got})", "p")


def _named(e: Emitter, i: Instruction) -> tuple[str, str]:
    number = e.read(i.arguments[0], "u4")
    count = e.read(i.arguments[1], "u4") if len(i.arguments) > 1 else "None"
    return number, count


def _aligned(i: Instruction) -> bool:
    return i.op.startswith("bar.") or ".aligned" in i.op


@form(r"(bar|barrier)(?:\.cta)?\.sync(?:\.aligned)?", blocking=True)
def named_sync(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """Arrive at a named barrier and wait for it."""
    if _aligned(i):
        together(e)
    number, count = _named(e, i)
    call = f"barriers.sync(w, {number}, {count}, {e.mask}, {_aligned(i)})"
    e.put(f"w.line = {i.line}")
    e.put(f"if {guard(e, i)}{call}: return BLOCKED")


@form(r"(bar|barrier)(?:\.cta)?\.arrive(?:\.aligned)?", convergent=True)
def named_arrive(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """Arrive at a named barrier and go on."""
    if _aligned(i):
        together(e)
    number, count = _named(e, i)
    e.effect(f"barriers.arrive(w, {number}, {count}, {e.mask}, {_aligned(i)})")


@form(
    r"(bar|barrier)(?:\.cta)?\.red(?P<how>\.popc|\.and|\.or)(?:\.aligned)?\.(?P<type>u32|pred)",
    blocking=True,
)
def named_reduce(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Meet at a named barrier and learn how many, all or any predicates hold."""
    if _aligned(i):
        together(e)
    number = e.read(i.arguments[1], "u4")
    count = e.read(i.arguments[2], "u4") if len(i.arguments) == 4 else "None"
    value = e.read(i.arguments[-1], "p")
    e.put(f"w.line = {i.line}")
    call = f"barriers.reduce(w, {number}, {count}, {value}, {e.mask}, {m['how'][1:]!r})"
    got = e.let(call)
    e.put(f"if {got} is None: return BLOCKED")
    e.write(i.arguments[0], got, "u4" if m["type"] == "u32" else "p")


@form(r"barrier\.cluster\.arrive(?P<order>\.release|\.relaxed)?(?:\.aligned)?", convergent=True)
def cluster_arrive(e: Emitter, i: Instruction, m: re.Match[str]) -> None:
    """Arrive at the barrier of all threads of the cluster."""
    if i.op.endswith("aligned"):
        together(e)
    e.effect(f"barriers.cluster_arrive(w, {e.mask}, {m['order'] == '.relaxed'})")


@form(r"barrier\.cluster\.wait(?:\.acquire)?(?:\.aligned)?", blocking=True)
def cluster_wait(e: Emitter, i: Instruction, _: re.Match[str]) -> None:
    """Wait for all threads of the cluster."""
    if i.op.endswith("aligned"):
        together(e)
    e.put(f"w.line = {i.line}")
    e.put("if barriers.cluster_wait(w): return BLOCKED")


@form(r"fence\.mbarrier_init\.release\.cluster")
def fence_initialisation(e: Emitter, _: Instruction, __: re.Match[str]) -> None:
    """Make initialised barriers visible to other CTAs and to the async proxy."""
    e.effect("mbarrier.publish(w)")


@form(
    r"fence\.proxy\.async(?:\.(?P<space>global|shared::cta|shared::cluster)"
    r"|::generic\.(?:release|acquire)\.sync_restrict::(?P<restrict>shared::cta|shared::cluster)\.cluster)?"
)
def fence_proxy(e: Emitter, _: Instruction, m: re.Match[str]) -> None:
    """Order generic accesses before asynchronous ones, in one state space or in all."""
    space = m["space"] or m["restrict"]
    if space != "global":  # barriers are in shared memory
        e.effect("mbarrier.publish(w)")
    e.effect(f"w.fence_proxy({space!r})")


@form(r"fence\.proxy\.(?:alias|tensormap::generic\.(?:release|acquire)\.\w+)")
def fence_tensor_map(_: Emitter, __: Instruction, ___: re.Match[str]) -> None:
    """Tensor maps in memory are read when they are used."""


@form(
    r"fence(?:\.(?P<order>sc|acq_rel|acquire|release))?(?:\.sync_restrict[\w:.]*)?\.(?P<scope>cta|cluster|gpu|sys)"
)
@form(r"membar\.(?P<scope>cta|gl|sys)")
def fence(e: Emitter, _: Instruction, __: re.Match[str]) -> None:
    """Memory fence: with a relaxed atomic it makes a release or an acquire."""
    e.effect("w.fence()")
