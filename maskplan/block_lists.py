"""`BlockLists`: what `Plan` and `TransposedPlan` share, in either direction.

Block CSR over P distinct patterns, a `pattern_id` that says which pattern each (batch, head) uses,
and a pool of bit tiles for the blocks of which only some pairs attend.
"""

from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from maskplan.errors import PlanTypeError, sentence
from maskplan.geometry import Axes, Geometry
from maskplan.provenance import Provenance
from maskplan.untransformed import untransformed

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot

    from maskplan.stats import PlanStats

FULL = -1  # `tile_id` of a block in which every in-range pair attends


def require_exact(plan: "BlockLists", where: str) -> None:
    """Refuse a device plan, for what only exact plans on the CPU can do.

    Raises:
        PlanTypeError: if it is one.
    """
    if plan.status is not None:
        raise PlanTypeError(
            sentence(
                what=f"plan is on {plan.device}",
                where=where,
                got="a device plan, whose numbers of blocks the device alone knows",
                wanted="an exact plan on the CPU",
                remedy="use plan.cpu(), which waits for the device",
            )
        )


def _shape_error(name: str, tensor: Tensor, wanted: str) -> PlanTypeError:
    return PlanTypeError(
        sentence(
            what="plan array has the wrong dtype or shape",
            where=name,
            got=f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}",
            wanted=wanted,
            remedy="make plans with a builder such as from_block_mask",
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BlockLists:
    """Fields and methods that `Plan` and `TransposedPlan` share; rows and columns are `axes`."""

    geometry: Geometry
    pattern_id: Tensor
    row_ptr: Tensor
    col: Tensor
    tile_id: Tensor | None
    tiles: Tensor
    provenance: Provenance | None = None
    status: Tensor | None = None

    def __post_init__(self) -> None:
        axes = self.axes
        expected = {
            "pattern_id": (torch.int32, 2, "int32 [batch, heads]"),
            "row_ptr": (torch.int64, 1, "int64 [patterns * rows + 1]"),
            "col": (torch.int32, 1, "int32 [blocks]"),
            "tiles": (torch.int32, 3, f"int32 [tiles, {axes.row_block}, {axes.words}]"),
        }
        for name, (dtype, rank, wanted) in expected.items():
            tensor = getattr(self, name)
            if tensor.dtype != dtype or tensor.ndim != rank:
                raise _shape_error(name, tensor, wanted)
        if tuple(self.tiles.shape[1:]) != (axes.row_block, axes.words):
            raise _shape_error("tiles", self.tiles, str(expected["tiles"][2]))
        extra = len(self.row_ptr) - 1
        if extra < 0 or (extra % axes.rows if axes.rows else extra):
            raise _shape_error("row_ptr", self.row_ptr, f"patterns * {axes.rows} + 1 entries")
        tile_id = self.tile_id
        if tile_id is not None and (tile_id.dtype, tile_id.shape) != (torch.int32, self.col.shape):
            raise _shape_error("tile_id", tile_id, f"int32 {list(self.col.shape)}, as col")
        status = self.status
        if status is not None and (status.dtype, tuple(status.shape)) != (torch.int32, (1,)):
            raise _shape_error("status", status, "int32 [1]")

    @property
    def axes(self) -> Axes:
        """Lengths and block sizes in tokens, rows first."""
        raise NotImplementedError

    @property
    def seqlen_q(self) -> int:
        """SQ, in tokens."""
        return self.geometry.seqlen_q

    @property
    def seqlen_k(self) -> int:
        """SK, in tokens."""
        return self.geometry.seqlen_k

    @property
    def block_size(self) -> tuple[int, int]:
        """(bq, bk), in tokens, in both directions."""
        return self.geometry.block_size

    @property
    def batch(self) -> int:
        """1, or the batch size."""
        return int(self.pattern_id.shape[0])

    @property
    def heads(self) -> int:
        """1, the number of KV heads, or the number of query heads."""
        return int(self.pattern_id.shape[1])

    @property
    def num_patterns(self) -> int:
        """P: distinct patterns held. A plan with no rows holds one, empty."""
        rows = self.axes.rows
        if rows == 0:
            return 1
        return (len(self.row_ptr) - 1) // rows

    @property
    def num_blocks(self) -> int:
        """Blocks listed, over the distinct patterns; of a device plan, the room for them."""
        return len(self.col)

    @property
    def num_tiles(self) -> int:
        """Distinct bit tiles held; of a device plan, the room for them."""
        return len(self.tiles)

    @property
    def device(self) -> torch.device:
        """Where the arrays live."""
        return self.col.device

    @untransformed
    def to(self, device: torch.device | str) -> Self:
        """The plan on another device.

        From the CPU to a GPU: the exact arrays, as a device plan without faults. To the CPU: `cpu`.

        Raises:
            PlanTypeError: if `device` is no device.
            PlanError: if there is no such one here; as `cpu` does.
        """
        from maskplan.device.move import to_device

        return to_device(self, device)

    @untransformed
    def cpu(self) -> Self:
        """The exact, canonical plan on the CPU, equal to what a builder makes there.

        Of a device plan this waits for the device, trims and renumbers: not for the hot path. A
        plan on the CPU is returned as it is.

        Raises:
            PlanError: if the device recorded a fault: see `maskplan.device.status`.
        """
        from maskplan.device.move import to_cpu

        return to_cpu(self)

    @property
    @untransformed
    def digest(self) -> str:
        """SHA-256 of the canonical form, in hex; equal exactly for equal plans."""
        require_exact(self, "digest")
        from maskplan.normal import digest

        return digest(self)

    @untransformed
    def validate(self) -> Self:
        """The plan itself, once every invariant of the class docstring has been checked.

        Reads every entry: O(blocks + tiles). Of a device plan it reads the status word alone, and
        waits for the device to do so: not for the hot path.

        Raises:
            PlanError: naming the number of the invariant, where it broke and the value; of a device
                plan, naming what was dropped.
        """
        from maskplan.validate import validate

        validate(self)
        return self

    @untransformed
    def canonical(self) -> Self:
        """The normal form: see the class docstring. Same meaning, and equal arrays if equal."""
        require_exact(self, "canonical")
        from maskplan.normal import canonical

        return canonical(self)

    @untransformed
    def to_dense(self) -> Tensor:
        """The mask this plan means, token by token: its definition, slow and as large as it looks.

        Returns:
            bool [batch, heads, SQ, SK], or [batch, heads, SK, SQ] of a `TransposedPlan`.
        """
        require_exact(self, "to_dense")
        from maskplan.dense import to_dense

        return to_dense(self)

    @property
    def density(self) -> float:
        """Kept pairs over all pairs, at token level, over (batch, heads)."""
        return self.stats().density

    @untransformed
    def stats(self, *, head_dim: int = 128) -> "PlanStats":
        """Pairs, densities, block counts, work and its balance, FLOPs and bytes."""
        require_exact(self, "stats")
        from maskplan.stats import stats

        return stats(self, head_dim=head_dim)

    @untransformed
    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to one safetensors file; an interrupted save leaves the old file whole."""
        require_exact(self, "save")
        from maskplan.io import save

        save(self, path)

    @untransformed
    def plot(self, **options: Any) -> "Plot":
        """The mask of one head, drawn by matplotlib: see `maskplan.viz.plot`."""
        require_exact(self, "plot")
        from maskplan.viz.matrix import plot

        return plot(self, **options)

    @untransformed
    def explore(self, path: str | PathLike[str], **options: Any) -> Path:
        """Write one HTML file to explore the plan in a browser: see `maskplan.viz.explore`."""
        require_exact(self, "explore")
        from maskplan.viz.page import explore

        return explore(self, path, **options)

    @untransformed
    def _repr_html_(self) -> str:
        """What a notebook shows."""
        if self.status is not None:
            return f"<code>{escape(repr(self))}</code>"
        from maskplan.viz.card import plan_card

        return plan_card(self)

    @untransformed
    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        require_exact(self, "==")
        require_exact(other, "==")
        from maskplan.normal import equal

        return equal(self, other)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        start = (
            f"{type(self).__name__}({self.geometry}, batch={self.batch}, heads={self.heads}, "
            f"patterns={self.num_patterns}, "
        )
        if self.status is None:
            return f"{start}blocks={self.num_blocks}, tiles={self.num_tiles})"
        # How many there are is known to the device alone, and a repr must not wait for it.
        room = f"room for {self.num_blocks} blocks and {self.num_tiles} tiles"
        return f"{start}{room}, on {self.device})"

    @untransformed
    def __str__(self) -> str:
        if self.status is not None:
            return repr(self)
        from maskplan.viz.text import picture

        return picture(self)
