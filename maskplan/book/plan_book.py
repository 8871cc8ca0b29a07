"""`PlanBook`: which plan a model uses at each step, layer and head, identical plans stored once."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from maskplan.book.entries import AXES, PlanKeyError, check_fit, check_range, places_of
from maskplan.geometry import Geometry
from maskplan.plan import Plan
from maskplan.provenance import Provenance

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot

    from maskplan.book.stats import BookStats

Key = tuple[int, int, int]
_DIGEST_VERSION = b"maskplan book digest 1"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PlanBook(Mapping[Key, Plan]):
    """A frozen mapping (step, layer, head) -> Plan that leaves no entry of its ranges out.

    All plans share one geometry. They are held as one canonical Plan whose heads axis is every
    (step, layer, head) in turn, head fastest: equal patterns and equal bit tiles are stored once,
    and a layer is a slice of its `pattern_id`.

    Make one with `from_plans`, `from_layers` or `from_choices`.

    Attributes:
        plans: canonical Plan with batch 1 and steps * layers * heads heads.
        steps: range of step numbers, of step 1.
        layers: range of layer numbers.
        heads: range of head numbers.
        pattern_provenance: how each distinct pattern was made, None where that is not known.
        provenance: how the book was made.

    Raises:
        PlanTypeError: if a field has the wrong type.
        PlanError: if the ranges do not fit `plans`, or one is empty.
    """

    plans: Plan
    steps: range
    layers: range
    heads: range
    pattern_provenance: tuple[Provenance | None, ...]
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        sizes = [len(check_range(getattr(self, name), name)) for name in AXES]
        check_fit(self.plans, sizes, len(self.pattern_provenance))

    @classmethod
    def from_plans(
        cls,
        plans: Mapping[Key, Plan],
        *,
        steps: range | None = None,
        layers: range | None = None,
        heads: range | None = None,
        default: Plan | None = None,
        provenance: Provenance | None = None,
    ) -> "PlanBook":
        """The book of one plan for each (step, layer, head).

        Args:
            plans: plans of batch 1 and one head. A plan object used under many keys is read once,
                equal ones (by digest) are kept once, with the provenance of the first.
            steps: step numbers; by default from the smallest key to the largest.
            layers: layer numbers, likewise.
            heads: head numbers, likewise.
            default: the plan of keys inside the ranges that `plans` leaves out.
            provenance: how the book was made.

        Raises:
            PlanTypeError: if a key is not three integers, or a value not a Plan.
            PlanError: if a key lies outside the ranges, or is missing and there is no `default`, or
                plans differ in geometry, or one has a batch or heads.
        """
        from maskplan.book.make import book_of_plans

        return book_of_plans(plans, (steps, layers, heads), default, provenance)

    @classmethod
    def from_layers(
        cls,
        plans: Mapping[tuple[int, int], Plan],
        *,
        steps: range | None = None,
        layers: range | None = None,
        heads: int | None = None,
        default: Plan | None = None,
        provenance: Provenance | None = None,
    ) -> "PlanBook":
        """The book of one plan for each (step, layer).

        Args:
            plans: plans of batch 1 with all heads of the layer, or one that they share.
            steps: step numbers; by default from the smallest key to the largest.
            layers: layer numbers, likewise.
            heads: number of heads; by default the largest that a plan has.
            default: the plan of keys inside the ranges that `plans` leaves out.
            provenance: how the book was made.

        Raises:
            PlanTypeError: if a key is not two integers, or a value not a Plan.
            PlanError: as `from_plans`, or if a plan has neither 1 nor `heads` heads.
        """
        from maskplan.book.make import book_of_layers

        return book_of_layers(plans, (steps, layers), heads, default, provenance)

    @classmethod
    def from_choices(
        cls,
        choices: Sequence[Plan],
        index: Tensor,
        *,
        ranges: tuple[range, range, range] | None = None,
        provenance: Provenance | None = None,
    ) -> "PlanBook":
        """The book in which entry (step, layer, head) uses one of a few plans.

        Args:
            choices: plans of batch 1 and one head.
            index: int32 or int64 [steps, layers, heads]: the choice of each entry.
            ranges: step, layer and head numbers; from 0 by default.
            provenance: how the book was made.

        Raises:
            PlanTypeError: if `index` is no such tensor, or a choice no Plan.
            PlanError: if an index is out of range, plans differ in geometry or have a batch or
                heads, or the ranges do not fit.
        """
        from maskplan.book.make import book_of_choices

        return book_of_choices(choices, index, ranges, provenance)

    @property
    def geometry(self) -> Geometry:
        """SQ, SK and block size of every plan."""
        return self.plans.geometry

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of steps, layers and heads."""
        return len(self.steps), len(self.layers), len(self.heads)

    @property
    def index(self) -> Tensor:
        """The distinct pattern of each entry: int32 [steps, layers, heads]."""
        return self.plans.pattern_id.view(self.shape)

    @property
    def num_patterns(self) -> int:
        """Distinct patterns held."""
        return self.plans.num_patterns

    @property
    def digest(self) -> str:
        """SHA-256 over the ranges and the plans, in hex; equal exactly for equal books."""
        state = hashlib.sha256(_DIGEST_VERSION)
        for numbers in self._ranges:
            state.update(f"{numbers.start} {numbers.stop} ".encode())
        state.update(self.plans.digest.encode())
        return state.hexdigest()

    @property
    def density(self) -> float:
        """Kept pairs over all pairs, at token level, over the whole run."""
        return self.stats().density

    def pattern(self, number: int) -> Plan:
        """Distinct pattern `number` as a plan of one head, with its provenance."""
        from maskplan.book.parts import pattern_of

        return pattern_of(self, number)

    def plan(self, step: int, layer: int) -> Plan:
        """The plan of all heads of one layer at one step.

        Nothing is planned again: the patterns that these heads use are copied out of the pool,
        O(heads + their blocks).

        Raises:
            PlanKeyError: if the book does not hold that step or layer.
        """
        from maskplan.book.parts import layer_of

        return layer_of(self, step, layer)

    def select(
        self,
        *,
        steps: range | None = None,
        layers: range | None = None,
        heads: range | None = None,
    ) -> "PlanBook":
        """The book of some steps, layers and heads, which keep their numbers.

        Raises:
            PlanKeyError: if a number is not in the book.
            PlanError: if a range is empty or has a step other than 1.
        """
        from maskplan.book.parts import selection_of

        return selection_of(self, (steps, layers, heads))

    def stats(self, *, head_dim: int = 128) -> "BookStats":
        """Densities by step and layer, and the FLOPs of the whole run beside dense attention."""
        from maskplan.book.stats import book_stats

        return book_stats(self, head_dim=head_dim)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the book to one file; an interrupted save leaves the old file whole."""
        from maskplan.book.file import save_book

        save_book(self, path)

    def plot(self, **options: Any) -> "Plot":
        """Density by step and layer, drawn by matplotlib: see `maskplan.viz.density_map`."""
        from maskplan.viz.density import density_map

        return density_map(self, **options)

    def explore(self, path: str | PathLike[str], **options: Any) -> Path:
        """Write one HTML file to explore the book in a browser: see `maskplan.viz.explore`."""
        from maskplan.viz.page import explore

        return explore(self, path, **options)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from maskplan.viz.card import book_card

        return book_card(self)

    @classmethod
    def load(cls, path: str | PathLike[str], *, max_blocks: int = 2**28) -> "PlanBook":
        """Read a book that `save` wrote, and check all of it.

        Args:
            path: the file.
            max_blocks: most blocks over the distinct patterns; a file that claims more is refused
                before memory is taken.

        Raises:
            PlanFileError: if the file is damaged, too large, of an unknown version or no book.
            OSError: if it cannot be read.
        """
        from maskplan.book.file import load_book

        return load_book(path, max_blocks=max_blocks)

    def __getitem__(self, key: Key) -> Plan:
        return self.pattern(int(self.index[places_of(self._ranges, key)]))

    def __contains__(self, key: object) -> bool:
        try:
            places_of(self._ranges, key)
        except PlanKeyError:
            return False
        return True

    @property
    def _ranges(self) -> tuple[range, range, range]:
        return self.steps, self.layers, self.heads

    def __iter__(self) -> Iterator[Key]:
        return itertools.product(self.steps, self.layers, self.heads)

    def __len__(self) -> int:
        return self.plans.heads

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlanBook):
            return NotImplemented
        return self._ranges == other._ranges and self.plans == other.plans

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return (
            f"PlanBook({self.geometry}, steps={self.steps}, layers={self.layers}, "
            f"heads={self.heads}, patterns={self.num_patterns})"
        )

    def __str__(self) -> str:
        return str(self.stats())
