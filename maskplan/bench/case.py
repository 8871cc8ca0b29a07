"""One row of the benchmark: works that are compared, and the figures that are judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from maskplan.bench.clock import Clock

Work = Callable[[], object]


class Missing(Exception):  # noqa: N818 # a reason to leave a work out, and no error
    """A work cannot be run here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What is judged: a work's time over that of another, less it, or by itself.

    Attributes:
        label: what the figure says, such as "ours / reading the indices once".
        top: the work above.
        bottom: the work below; None for the time of `top` in milliseconds.
        at_most: the aim, if it is an upper bound.
        at_least: the aim, if it is a lower bound.
        difference: top - bottom, in microseconds, rather than top / bottom.
    """

    label: str
    top: str
    bottom: str | None = None
    at_most: float | None = None
    at_least: float | None = None
    difference: bool = False

    def value(self, milliseconds: Mapping[str, float]) -> float | None:
        """The figure, or None where a work was left out."""
        if self.top not in milliseconds:
            return None
        top = milliseconds[self.top]
        if self.bottom is None:
            return top
        if self.bottom not in milliseconds:
            return None
        bottom = milliseconds[self.bottom]
        return 1e3 * (top - bottom) if self.difference else top / bottom

    @property
    def unit(self) -> str:
        """Of the value."""
        if self.bottom is None:
            return " ms"
        return " us" if self.difference else "x"

    @property
    def aim(self) -> str:
        """The aim in words; empty where there is none."""
        if self.at_most is not None:
            return f"<= {self.at_most:g}{self.unit}"
        return "" if self.at_least is None else f">= {self.at_least:g}{self.unit}"

    def met(self, value: float) -> bool | None:
        """Whether `value` meets the aim; None where there is none."""
        if self.at_most is not None:
            return value <= self.at_most
        return None if self.at_least is None else value >= self.at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a case measures.

    Attributes:
        works: makers of works by name, the one measured first. A maker that raises `Missing`, or a
            work that fails, is left out with its reason.
        figures: what is judged.
        flops: wanted floating-point operations of the works that attend, by name.
        clock: how to time; None for the machine's usual clock.
    """

    works: Mapping[str, Callable[[], Work]]
    figures: tuple[Figure, ...] = ()
    flops: Mapping[str, float] | None = None
    clock: Clock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row that may be measured.

    Attributes:
        name: unique, words parted by slashes; what `--rows` looks in.
        title: what is measured, for people.
        prepare: makes inputs and works; called only if the row is run.
    """

    name: str
    title: str
    prepare: Callable[[], Prepared]
