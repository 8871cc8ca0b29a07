"""One warp: its registers, its fragments, and how it runs until it cannot."""

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kernels_sm100.emulator.codegen.program import BLOCKED, DIVERGED, FINISHED
from kernels_sm100.emulator.codegen.tokens import DTYPE, STORAGE
from kernels_sm100.emulator.lanes.exchange import EVERY, LANE
from kernels_sm100.emulator.lanes.poison import poison
from kernels_sm100.emulator.lanes.types import Lanes, Mask
from kernels_sm100.emulator.machine.fragment import Fragment, Wait, merged
from kernels_sm100.emulator.machine.specials import Specials
from kernels_sm100.errors import (
    DivergenceError,
    EmulatorError,
    MemoryFault,
    Trap,
    UninitialisedRead,
    sentence,
)

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cta import Cta

QUANTUM = 256  # blocks a warp runs before others get a turn
SHORTEST = 8  # of a warp that only spins
SHARED_MASK = 0xFFFFFF  # offset of a shared::cluster address; the rank lies above
UNWRITTEN = "registers read before they are written"


class Warp:
    """32 lanes of a CTA.

    Attributes:
        cta: the CTA it belongs to.
        index: number in the CTA.
        registers: values by slot; None is never written.
        live: lanes that exist and have not exited.
        line: PTX line that is being executed.
        current: the fragment that runs.
        actor: number in the happens-before relation of the cluster.
    """

    def __init__(self, cta: "Cta", index: int, threads: int) -> None:
        self.cta = cta
        self.grid = cta.grid
        self.races = cta.cluster.races
        self.index = index
        self.actor = cta.rank * cta.warp_count + index
        self.registers: list[Any] = cta.grid.program.registers()
        self.live: Mask = LANE + 32 * index < threads
        self.current = Fragment(0, None if self.live.all() else self.live.copy())
        self.fragments = [self.current]
        self.waiting: Wait | None = None
        self.line = 0
        self.quantum = QUANTUM
        self.paused = False
        self.finished = False
        self.unwaited: set[int] = set()
        self.carry: Lanes = np.zeros(32, dtype=np.bool_)
        self.specials = Specials(cta, 32 * index)
        self.counts = np.zeros(cta.grid.program.blocks + 1, dtype=np.int64)
        self.local: Any = None
        self.cluster_phase: int | None = None
        self.bulk: dict[int, Any] = {}
        self.copies: dict[int, Any] = {}

    # Running

    def run(self, budget: int) -> bool:
        """Run up to `budget` blocks; whether any was run."""
        moved = False
        self.paused = False
        while budget > 0 and not self.paused:
            fragment = self._next()
            if fragment is None:
                break
            self.current = fragment
            used = self._run_fragment(fragment, budget)
            if used:
                moved = True
                budget -= used
                if len(self.fragments) > 1:
                    for other in self.fragments:
                        other.diverged = False
                    self.fragments = merged(self.fragments)
            if not self.fragments:
                self.finished = True
                self.grid.events += 1
                break
        return moved

    def _next(self) -> Fragment | None:
        if len(self.fragments) == 1:
            only = self.fragments[0]
            return only if only.runnable() else None
        ready = [fragment for fragment in self.fragments if fragment.runnable()]
        return min(ready, key=Fragment.order, default=None)

    def _run_fragment(self, fragment: Fragment, budget: int) -> int:
        """Run one fragment until it blocks, splits, ends or the budget is used; blocks run."""
        block, mask, registers = fragment.block, fragment.mask, self.registers
        code = self.grid.masked if mask is not None else self.grid.plain
        alone = len(self.fragments) == 1
        used, counts = 0, self.counts
        while True:
            function = code[block]
            if function is None:
                function = code[block] = self.grid.program.function(block, masked=mask is not None)
            try:
                result = function(self, registers, mask)
            except EmulatorError:
                raise
            except Exception as error:  # noqa: BLE001 - any failure of generated code is diagnosed
                self._diagnose(block, error)
            if result.__class__ is not int:
                counts[block] += 1
                self._split(fragment, *result)
                return used + 1
            if result >= 0:
                counts[block] += 1
                used += 1
                block = result
                if alone and used < budget and not self.paused:
                    continue
                fragment.jumps += block <= fragment.block
                fragment.held = False
                fragment.block = block
                return used
            fragment.block = block
            if result == FINISHED:
                counts[block] += 1
                self._leave(fragment)
                return used + 1
            if result == BLOCKED:
                fragment.wait, self.waiting = self.waiting, None
                return used
            assert result == DIVERGED
            fragment.diverged = fragment.held = True
            return used

    def _split(self, fragment: Fragment, target: int, other: int, taken: Mask) -> None:
        mask = EVERY if fragment.mask is None else fragment.mask
        self.fragments.remove(fragment)
        for block, lanes in ((target, taken), (other, mask & ~taken)):
            made = Fragment(block, lanes)
            self.fragments.append(made)
            if block == FINISHED:
                self._leave(made)

    def _leave(self, fragment: Fragment) -> None:
        self.live = self.live & ~(EVERY if fragment.mask is None else fragment.mask)
        self.fragments.remove(fragment)

    def _diagnose(self, block: int, error: Exception) -> NoReturn:
        """Say that generated code itself failed."""
        self.line = self.grid.program.line_of(block)
        raise EmulatorError(
            sentence(
                what="failure inside the emulator",
                where=self.where(),
                got=repr(error),
                wanted="code that runs",
                remedy="report it with the PTX",
            )
        ) from error

    # What generated code asks

    def together(self, mask: Mask, members: Lanes | None) -> bool:
        """Whether all live lanes that `members` names are in `mask`."""
        missing = self.live & ~mask
        if members is not None:
            missing = missing & self.members(members, None)
        return not missing.any()

    def check_uniform(self, taken: Mask, mask: Mask | None) -> None:
        """Refuse a warp-wide instruction whose predicate holds in some lanes only."""
        count = np.count_nonzero(taken)
        if count not in (0, 32 if mask is None else np.count_nonzero(mask)):
            self.fault(
                DivergenceError,
                what="warp-wide instruction whose predicate differs between lanes",
                got=f"{count} lanes",
                wanted="all lanes or none",
                remedy="branch around it by a uniform condition",
            )

    def members(self, word: Lanes, mask: Mask | None) -> Mask:
        """Lanes that a member mask names, as far as they run."""
        lane = int(np.argmax(mask)) if mask is not None else 0
        named = (int(word[lane]) >> LANE & 1).astype(np.bool_)
        return named if mask is None else named & mask

    def shared_address(self, offset: int) -> Lanes:
        """Address of a shared variable of this CTA, as u8 lanes."""
        return np.full(32, (self.cta.rank << 24) + offset, dtype=np.uint64)

    def map_address(self, address: Lanes, rank: Lanes, mask: Mask | None) -> Lanes:
        """`mapa`: the same offset in CTA `rank`."""
        ranks = rank if mask is None else rank[mask]
        if int(ranks.max()) >= self.cta.cluster.size:
            self.fault(
                MemoryFault,
                what="mapa to a CTA that the cluster does not have",
                got=int(ranks.max()),
                wanted=f"a rank below {self.cta.cluster.size}",
                remedy="check the cluster shape",
            )
        base = address & address.dtype.type(SHARED_MASK)
        mapped: Lanes = base | (rank.astype(address.dtype) << address.dtype.type(24))
        return mapped

    def parameter(self, offset: int, size: int) -> Lanes:
        """A kernel parameter, the same in all lanes."""
        return self.grid.parameter(offset, size)

    def clock(self, name: str) -> Lanes:
        """A clock that counts blocks: it moves, and says nothing about time."""
        self.grid.ticks += 1
        wide = name in ("clock64", "globaltimer")
        value = self.grid.ticks >> (32 if name.endswith("hi") else 0)
        return np.full(32, value, dtype=np.uint64).astype(np.uint64 if wide else np.uint32)

    def pause(self) -> None:
        """Let others run."""
        self.paused = True

    def fence(self) -> None:
        """`fence`: joins what relaxed loads saw, and covers relaxed stores that follow."""
        if self.races is not None:
            self.races.fence(self)

    def fence_proxy(self, space: str | None) -> None:
        """`fence.proxy.async`, of one state space or of all."""
        if self.races is not None:
            self.races.fence_proxy(self, space)

    def trap(self) -> NoReturn:
        """`trap`."""
        self.fault(
            Trap,
            what="the kernel trapped",
            got="trap",
            wanted="a run to the end",
            remedy="see which check of the kernel failed",
        )

    def block_on(self, wait: Wait) -> bool:
        """Make the current fragment wait; returns True for generated code."""
        self.waiting = wait
        return True

    def unwritten(self, slot: int, line: int) -> Lanes:
        """What a register that nobody wrote reads as."""
        program = self.grid.program
        name = program.register_at(slot)
        if self.grid.strict_registers:
            self.line = line
            self.fault(
                UninitialisedRead,
                what="register that is read before it is written",
                got=name,
                wanted="a value on every path to here",
                remedy="write it first",
            )
        self.grid.report.warnings[UNWRITTEN] += 1
        width = program.kernel.width_of(name)
        assert width is not None
        value = self.registers[slot] = poison(DTYPE[STORAGE[width]])
        return value

    def hand_on(self, sources: frozenset[int], targets: frozenset[int], line: int) -> None:
        """A move of registers, of which `tcgen05.ld` has yet to fill some."""
        self.check_waited(targets, line)
        if not self.unwaited.isdisjoint(sources):
            self.unwaited |= targets

    def check_waited(self, slots: frozenset[int], line: int) -> None:
        """Refuse registers that `tcgen05.ld` has yet to fill."""
        if not self.unwaited.isdisjoint(slots):
            self.line = line
            self.fault(
                UninitialisedRead,
                what="result of tcgen05.ld that is used before tcgen05.wait::ld",
                got="a register whose load may be in flight",
                wanted="tcgen05.wait::ld between load and use",
                remedy="wait before the first use",
            )

    # Reports

    def where(self) -> str:
        """CTA, warp, PTX line and source line."""
        instruction = self.grid.instruction_at(self.line)
        text = f" `{instruction.text[:100]}`" if instruction else ""
        source = self.grid.program.kernel.source_of(self.line)
        return f"CTA {self.cta.index} warp {self.index} at PTX line {self.line}{text}{source}"

    def fault(
        self, kind: type[EmulatorError], *, what: str, got: Any, wanted: Any, remedy: str
    ) -> NoReturn:
        """Stop the launch."""
        raise kind(sentence(what=what, where=self.where(), got=got, wanted=wanted, remedy=remedy))
