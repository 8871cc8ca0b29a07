"""What a book keeps and costs over a whole run: densities by step and layer, FLOPs beside dense."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskplan.book.plan_book import PlanBook
from maskplan.geometry import Geometry, integer
from maskplan.pairs import by_pattern, kept_by_block
from maskplan.stats import FORWARD_FLOPS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BookStats:
    """Figures of a book, as `book_stats` counts them; densities are at token level.

    Attributes:
        geometry: lengths and block size.
        steps: step numbers.
        layers: layer numbers.
        heads: head numbers.
        head_dim: D of the FLOP counts.
        pattern_pairs: pairs kept by each distinct pattern, int64 [patterns].
        pattern_uses: entries that use it, int64 [patterns].
        density_map: kept pairs over all pairs of each step and layer, float64 [steps, layers].
        pairs: pairs kept over the whole run.
        all_pairs: pairs of dense attention over the whole run.
    """

    geometry: Geometry
    steps: range
    layers: range
    heads: range
    head_dim: int
    pattern_pairs: Tensor
    pattern_uses: Tensor
    density_map: Tensor
    pairs: int
    all_pairs: int

    @property
    def density(self) -> float:
        """Kept pairs over all pairs, over the whole run."""
        return self.pairs / self.all_pairs if self.all_pairs else 0.0

    @property
    def density_by_step(self) -> Tensor:
        """Density of each step, float64 [steps]."""
        return self.density_map.mean(dim=1)

    @property
    def density_by_layer(self) -> Tensor:
        """Density of each layer, float64 [layers]."""
        return self.density_map.mean(dim=0)

    @property
    def forward_flops(self) -> int:
        """4 * pairs * D over every (step, layer, head), of one sample."""
        return FORWARD_FLOPS * self.pairs * self.head_dim

    @property
    def dense_forward_flops(self) -> int:
        """The same if every pair were kept."""
        return FORWARD_FLOPS * self.all_pairs * self.head_dim

    def __str__(self) -> str:
        sizes = (len(self.steps), len(self.layers), len(self.heads))
        entries = int(self.pattern_uses.sum())
        dense = f"D={self.head_dim}, one sample (dense: {self.dense_forward_flops:.3e})"
        lines = [
            f"{self.geometry}, {sizes[0]} steps x {sizes[1]} layers x {sizes[2]} heads",
            f"  distinct patterns {len(self.pattern_uses):>12}  of {entries} entries",
            f"  density           {self.density:>12.4%}  kept pairs / all pairs, token level",
            f"  forward FLOPs     {self.forward_flops:>12.3e}  {dense}",
            "  density by step",
        ]
        return "\n".join(lines + [f"    {line}" for line in self._steps_in_runs()])

    def _steps_in_runs(self) -> list[str]:
        """Steps of equal density in one line, with first and last step."""
        found: list[tuple[int, int, float]] = []
        for step, density in zip(self.steps, self.density_by_step.tolist(), strict=True):
            if found and found[-1][2] == density:
                found[-1] = (found[-1][0], step, density)
            else:
                found.append((step, step, density))
        return [f"{first:>4} to {last:>4}  {density:>9.4%}" for first, last, density in found]


def book_stats(book: PlanBook, *, head_dim: int = 128) -> BookStats:
    """Count what `book` keeps, once per distinct pattern: O(blocks + entries).

    Args:
        book: the plans.
        head_dim: D of the FLOP counts, at least 1.

    Raises:
        PlanTypeError: if head_dim is not an integer.
        PlanError: if it is below 1.
    """
    head_dim = integer(head_dim, "head_dim", low=1)
    plans = book.plans
    pairs = by_pattern(plans, kept_by_block(plans))
    uses = torch.bincount(plans.pattern_id[0], minlength=plans.num_patterns)
    each = plans.seqlen_q * plans.seqlen_k
    density = (
        pairs.double() / each
        if each
        else torch.zeros(len(pairs), dtype=torch.float64, device="cpu")
    )
    # Python integers: pairs of one pattern fit 64 bits, those of a whole run may not.
    total = sum(n * count for n, count in zip(pairs.tolist(), uses.tolist(), strict=True))
    return BookStats(
        geometry=book.geometry,
        steps=book.steps,
        layers=book.layers,
        heads=book.heads,
        head_dim=head_dim,
        pattern_pairs=pairs,
        pattern_uses=uses,
        density_map=density[book.index.long()].mean(dim=2),
        pairs=total,
        all_pairs=plans.heads * each,
    )
