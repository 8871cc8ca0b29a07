"""Queries, keys and values that a command works on: from files, or made up and called so."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from maskplan.cli.arrays import read_array
from maskplan.cli.synthetic import tokens
from maskplan.errors import PlanError, sentence
from maskplan.geometry import integer

QueryFile = Annotated[
    Path | None,
    typer.Option(
        "--q", help="Queries: .npy of floats \\[batch, SQ, heads, D].", show_default=False
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option("--k", help="Keys: .npy of floats \\[batch, SK, heads, D].", show_default=False),
]
ValueFile = Annotated[
    Path | None,
    typer.Option("--v", help="Values: .npy of floats \\[batch, SK, heads, D].", show_default=False),
]
Synthetic = Annotated[
    str | None,
    typer.Option(
        help="Instead of files: random (noise), or smooth (scores fall off with distance).",
        show_default=False,
    ),
]
Heads = Annotated[int, typer.Option(help="Heads of synthetic q and k.")]
Channels = Annotated[int, typer.Option("--head-dim", help="D of synthetic q and k.")]
Seed = Annotated[int, typer.Option(help="Seed of synthetic q and k.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the caller said of q and k.

    Attributes:
        q: file of queries.
        k: file of keys.
        synthetic: kind of made-up ones, in place of files.
        heads: heads of made-up ones.
        head_dim: D of made-up ones.
        seed: seed of made-up ones.
    """

    q: Path | None
    k: Path | None
    synthetic: str | None
    heads: int
    head_dim: int
    seed: int

    def check(self, other: str | None = None) -> None:
        """Refuse anything but both files or a kind.

        Args:
            other: another option that would have done.

        Raises:
            PlanError: if there is neither or both, or one file without the other.
        """
        files = [path for path in (self.q, self.k) if path is not None]
        if (len(files), self.synthetic is None) not in {(2, True), (0, False)}:
            given = [n for n, p in (("--q", self.q), ("--k", self.k)) if p is not None]
            given += [] if self.synthetic is None else ["--synthetic"]
            ways = "--q and --k, or --synthetic" + ("" if other is None else f", or {other}")
            raise PlanError(
                sentence(
                    what="queries and keys are not given once",
                    where="the options",
                    got=" and ".join(given) or "none",
                    wanted=ways,
                    remedy="pass a model's own q and k, or --synthetic smooth to try",
                )
            )

    @property
    def said(self) -> str:
        """What q and k are, in words."""
        if self.synthetic is None:
            return f"q of {self.q} and k of {self.k}"
        return f"synthetic {self.synthetic} q and k (seed {self.seed}), no model's"

    def read(self, q_places: Tensor, k_places: Tensor) -> tuple[Tensor, Tensor]:
        """(q, k), float32 [batch, tokens, heads, D].

        Args:
            q_places: where queries lie, float32 [SQ, axes].
            k_places: where keys lie, float32 [SK, axes].

        Raises:
            PlanError: if a file has another number of tokens, or NaN.
        """
        sides = (("q", self.q, q_places), ("k", self.k, k_places))
        if self.synthetic is None:
            q, k = (_floats(path, name, len(where)) for name, path, where in sides)
            return q, k
        heads, dim = integer(self.heads, "heads", low=1), integer(self.head_dim, "head_dim", low=1)
        seed = integer(self.seed, "seed", high=2**30)
        made = (
            tokens(self.synthetic, where, heads=heads, head_dim=dim, seed=seed, role=name)
            for name, _, where in sides
        )
        q, k = made
        return q, k


def values(path: Path | None, k: Tensor, seed: int) -> Tensor:
    """Values of a file, or noise like `k`.

    Raises:
        PlanError: if the file has another number of tokens, or NaN.
    """
    if path is not None:
        return _floats(path, "v", k.shape[1])
    return torch.randn(k.shape, generator=torch.Generator().manual_seed(2 * seed + 7))


def _floats(path: Path | None, name: str, length: int) -> Tensor:
    assert path is not None, "checked"
    array = read_array(path, "f", 4).float()
    if array.shape[1] != length or not bool(array.isfinite().all()):
        fault = f"{array.shape[1]} tokens" if array.shape[1] != length else "NaN or infinity"
        raise PlanError(
            sentence(
                what=f"{name} does not fit",
                where=str(path),
                got=f"{fault} in {list(array.shape)}",
                wanted=f"finite [batch, {length} tokens, heads, D]",
                remedy="pass the tensor of one attention call, its tokens on axis 1",
            )
        )
    return array
