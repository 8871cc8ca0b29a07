"""`VerifyReport`: what `verify` found, in numbers and in words."""

from dataclasses import dataclass

import torch

from maskplan.attention.budget import Comparison
from maskplan.errors import MaskplanError, sentence

_SHOWN = 5  # faults printed per tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What `verify` found.

    Attributes:
        backend: the one judged.
        dtype: of its inputs.
        subject: the plan, in words.
        sampled: whether only some queries and keys were compared.
        comparisons: out, lse, dq, dk and dv; out and lse alone where there is no backward.
        derivatives: along q, k and v; none of large calls, or where there is no backward.
        no_backward: why there is none, if so.
    """

    backend: str
    dtype: torch.dtype
    subject: str
    sampled: bool
    comparisons: tuple[Comparison, ...]
    derivatives: tuple[Comparison, ...] = ()
    no_backward: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every block of every tensor, and every derivative, kept its error budget."""
        return all(comparison.ok for comparison in (*self.comparisons, *self.derivatives))

    def raise_if_failed(self) -> None:
        """Do nothing, or say what is wrong.

        Raises:
            MaskplanError: if a block is beyond its error budget, with the worst one.
        """
        if self.ok:
            return
        wrong = (c for c in (*self.comparisons, *self.derivatives) if not c.ok)
        bad = max(wrong, key=lambda c: c.worst)
        raise MaskplanError(
            sentence(
                what=f"{bad.name} of backend {self.backend} is wrong",
                where=f"batch {bad.faults[0].batch}, head {bad.faults[0].head}, "
                f"block {bad.faults[0].block}",
                got=f"an error of {bad.faults[0].error:.2e}",
                wanted=f"at most {bad.faults[0].budget:.2e}",
                remedy="do not use the backend for this plan, and report it with the plan",
            )
        )

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        lines = [
            f"{self.backend} against float64, {dtype}, {self.subject}",
            "tensor   blocks  worst error / budget",
        ]
        for c in (*self.comparisons, *self.derivatives):
            lines.append(f"{c.name:<7}  {c.blocks:>6}  {c.worst:.3f}{'' if c.ok else '  WRONG'}")
            lines += [f"        {fault}" for fault in c.faults[:_SHOWN]]
            if len(c.faults) > _SHOWN:
                lines.append(f"        and {len(c.faults) - _SHOWN} more")
        if self.no_backward is not None:
            lines.append(f"forward alone: {self.no_backward}")
        some = "sampled queries and keys" if self.sampled else "every query and key"
        lines.append(f"{'right' if self.ok else 'WRONG'} on {some}")
        return "\n".join(lines)
