"""`TokenTiles`: the tokens that each Q tile gathers, for kernels that load K and V by token.

NOTE [Policies of a tile]: a kernel gathers one list of keys for all rows of a Q tile. `uniform`
takes the tile's one list, and is an error where its queries differ. `union` takes every key that a
row wants and keeps rows apart by bits, so it is exact; unrelated rows soon cover most keys (128
rows of 128 random keys cover 98 % of 4,096), and then listing blocks is cheaper, so it refuses.
`representative` takes the first row's list for all, and is another mask than the one asked for.

NOTE [Whole blocks]: keys that come in whole aligned blocks of 128 need no table of tokens: a block
is one number, and TMA loads it. Whether a selection is such is measured, list by list, never taken
from a claim. Then the form is that of `BlockSparseTensors`, exact by bits where queries differ.
Lists that differ among the heads packed into a tile stay a table of tokens.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from maskplan.lower.packing import register
from maskplan.lower.tensors import BlockSparseTensors
from maskplan.lower.token_checks import raise_no_target, raise_not_counted
from maskplan.plan import Plan
from maskplan.untransformed import untransformed

if TYPE_CHECKING:
    from maskplan.lower.lowered import LoweredPlan

KEYS = 128  # keys of a logical block, and of an aligned one
MAX_COVERAGE = 0.5
NOT_COUNTED = -1  # pairs of tiles that a GPU made


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TokenTiles:
    """What a kernel that gathers tokens walks, tile by tile. A frozen pytree of tensors.

    `attention` takes it, and `print` says what it lists. There is no file of it: `to_plan().save`
    keeps the pairs, and tiles are made again from a plan or from lists.

    H is 1, HK (with PackGQA), or as many heads as the lists have; M the number of Q tiles; L the
    longest list rounded up to 128. Axes that were broadcast are views of stride 0.

    Attributes:
        seqlen_q: SQ, in tokens.
        seqlen_k: SK, in tokens.
        tile_rows: packed rows of a Q tile, 128 or 256; row = token * rows_per_token + head in
            group.
        rows_per_token: G with PackGQA, else 1.
        lists_per_token: G where the packed heads of a group have lists of their own, else 1.
        policy: "uniform", "union" or "representative": see NOTE [Policies of a tile].
        tile_token_indices: int32 [B, H, M, L]: the tile's keys, ascending, -1 from its count on;
            None in the form of blocks, see NOTE [Whole blocks].
        valid_counts: int32 [B, H, M]: keys of each tile.
        blocks: lists of logical blocks, entries 128 * n of the tile's list on, where a full block
            needs no mask and a mask block the count or the bits; the tail is a mask block without a
            bit tile. In the form of blocks they are KV blocks of 128 keys, with bit tiles.
        row_bits: int32 [B, H, M, tile_rows, L / 32] of a union whose rows differ: bit i of word w
            of a row is whether it sees entry 32 * w + i. None where every row sees every entry.
        plan: the plan that `blocks` lists, in the form of blocks; else None.
        wanted_pairs: (row, key) pairs asked for, over all (batch, head); -1 where a GPU made the
            tiles, whose pairs `cpu()` counts. So for the next two.
        kept_pairs: of these, the ones attended: all but for "representative".
        visited_pairs: pairs that a kernel computes, wanted or not.
        max_coverage: the share of keys beyond which a union of differing queries is refused.
        status: None of exact tiles; int32 [1] of tiles made on a GPU, whose bits record what was
            wrong: see `maskplan.device.status`.
        report: int64 [b, h, M, 4] of a table made on a GPU, for `cpu()`; else None.

    Tiles made on a GPU are made without waiting for it, so their sizes follow from shapes: L is
    what the longest list may be, lists of blocks have L / 128 slots, and a union has `row_bits`
    even if no rows differ. A tile whose queries differ ("uniform") has an empty list there.
    """

    seqlen_q: int
    seqlen_k: int
    tile_rows: int
    rows_per_token: int
    lists_per_token: int
    policy: str
    tile_token_indices: Tensor | None
    valid_counts: Tensor
    blocks: BlockSparseTensors
    row_bits: Tensor | None
    plan: Plan | None
    wanted_pairs: int
    kept_pairs: int
    visited_pairs: int
    max_coverage: float = MAX_COVERAGE
    status: Tensor | None = None
    report: Tensor | None = None

    @staticmethod
    @untransformed
    def from_topk(
        indices: Tensor,
        seqlen_k: int,
        *,
        policy: str = "uniform",
        form: str = "auto",
        tile_rows: int = 128,
        group: int = 1,
        kv_heads: int | None = None,
        lengths: Tensor | None = None,
        base: str = "local",
        max_coverage: float = MAX_COVERAGE,
        capacity: int | None = None,
    ) -> "TokenTiles":
        """Tiles straight from lists of selected keys, with no plan in between.

        -1 is no key, in any slot; a key listed twice counts once; lists may differ in length. Work
        is O(indices + tiles * words touched), memory a row of SK bits for each list of a tile and
        thread, beside the result.

        Lists on a GPU become tiles there, in a row of SK bits for each list. With form="tokens" or
        "blocks" nothing waits for the device and everything can be captured in a CUDA graph;
        "auto" reads the lists first and waits for what they are. What is wrong (an index out of
        range, queries that differ) is recorded in the tiles' status word, which `validate()` and
        `cpu()` read.

        Args:
            indices: int32 or int64 [batch, heads, SQ, topk], any strides, on the CPU or a GPU, of
                keys. `expand` over batch or heads costs nothing.
            seqlen_k: SK, in tokens.
            policy: "uniform", "union" or "representative".
            form: "auto", blocks where lists were measured to be whole ones, else tokens: see NOTE
                [Whole blocks]. "tokens": a table whatever they are. "blocks": KV blocks whatever
                they are, exact by bits with policy="union"; with "uniform" an error where a query
                sees a block in part.
            tile_rows: packed rows of a Q tile: 128 or 256.
            group: query heads packed into the rows of a tile, row = token * group + head in group;
                1 without PackGQA.
            kv_heads: HK, where `indices` may hold lists of kv_heads * group query heads; by default
                its heads are KV heads. Such lists are compared, and taken as one where they are
                equal, on a GPU only with form="auto".
            lengths: int32 or int64 [batch, heads, SQ], sizes of 1 broadcast: the leading lanes of
                each list that hold; what lies beyond is ignored, valid or not.
            base: "local": keys count from the start of their own batch. "global": batch * SK + key.
            max_coverage: the share of keys beyond which a union of differing queries is refused.
            capacity: room for keys in a list on a GPU, by default for all that a union of a tile,
                or one list, may have; keys beyond are dropped and recorded. Of no consequence on
                the CPU.

        Raises:
            PlanTypeError: if an argument has the wrong dtype, rank or device, or an option is not a
                known one.
            PlanError: if heads, rows or the policy are none of those above; on the CPU also if an
                index or a length is out of range, with its place; if a tile's queries differ
                ("uniform"), with the first such tile; or if their union covers too much.
        """
        from maskplan.lower.token_lists import of_topk

        return of_topk(
            indices, seqlen_k, policy=policy, form=form, tile_rows=tile_rows, group=group,
            kv_heads=kv_heads, lengths=lengths, base=base, max_coverage=max_coverage,
            capacity=capacity,
        )  # fmt: skip

    @property
    def form(self) -> str:
        """What is listed: "tokens", or "blocks" where they were measured to be whole blocks."""
        return "blocks" if self.tile_token_indices is None else "tokens"

    @property
    def tile_tokens(self) -> int:
        """Query tokens of a tile."""
        return self.tile_rows // self.rows_per_token

    @property
    def batch(self) -> int:
        """1, or the batch size."""
        return int(self.valid_counts.shape[0])

    @property
    def heads(self) -> int:
        """H."""
        return int(self.valid_counts.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.valid_counts.device

    @untransformed
    def to(self, device: torch.device | str) -> "TokenTiles":
        """The tiles on another device; to the CPU: `cpu`.

        Raises:
            PlanTypeError: if `device` is no device.
            PlanError: if there is no such one here; as `cpu` does.
        """
        from maskplan.lower.token_device import to_device

        return to_device(self, device)

    @untransformed
    def cpu(self) -> "TokenTiles":
        """The exact tiles on the CPU, equal to what `from_topk` makes there of the same form.

        Of tiles made on a GPU this waits for it, checks, trims and counts pairs: not for the hot
        path.

        Raises:
            PlanError: if the device recorded a fault, with the first tile where one is at fault.
        """
        from maskplan.lower.token_device import to_cpu

        return to_cpu(self)

    @untransformed
    def validate(self) -> "TokenTiles":
        """The tiles themselves, once the status word has been read: it waits for the device.

        Raises:
            PlanError: as `cpu`.
        """
        from maskplan.lower.token_device import validate

        validate(self)
        return self

    @property
    def lost_pairs(self) -> int:
        """Wanted pairs that are not attended."""
        wanted, kept, _ = self._counted("lost_pairs")
        return wanted - kept

    @property
    def spurious_pairs(self) -> int:
        """Pairs visited that nobody wanted: masked by bits, or attended by "representative"."""
        _, kept, visited = self._counted("spurious_pairs")
        return visited - kept

    def _counted(self, where: str) -> tuple[int, int, int]:
        """(wanted, kept, visited) pairs."""
        if self.wanted_pairs == NOT_COUNTED:
            raise_not_counted(where, self.device)
        return self.wanted_pairs, self.kept_pairs, self.visited_pairs

    @property
    def nbytes(self) -> int:
        """Bytes of the tables, as they lie in memory: an axis of stride 0 counts once."""
        lists = self.blocks
        tensors = [
            self.tile_token_indices, self.valid_counts, self.row_bits, lists.mask_block_cnt,
            lists.mask_block_idx, lists.full_block_cnt, lists.full_block_idx, lists.mask_tile_id,
            lists.tiles,
        ]  # fmt: skip
        return sum(t.untyped_storage().nbytes() for t in tensors if t is not None)

    def lower(self) -> "LoweredPlan":
        """What `attention` runs of these tiles: made once, it serves any number of calls.

        On the CPU the lists are gathered as they lie in the tables, or row by row where rows see
        little of their tile's list. On a GPU it is the tables, for kernels there, and nothing waits
        for it; their status word is read by `validate`, or when the result moves to the CPU. In the
        form of blocks it is the plan, lowered for the CPU.

        Raises:
            PlanTypeError: of blocks on a GPU, where plans are lowered for a target.
        """
        from maskplan.lower.lowered import of_token_tiles
        from maskplan.lower.lowering import lower

        if self.plan is None:
            return of_token_tiles(self)
        if self.status is not None:
            raise_no_target(self.device)
        return lower(self.plan, "cpu")

    @untransformed
    def to_plan(self) -> Plan:
        """The exact plan of the pairs these tiles attend, in blocks of (tokens of a tile, 128).

        Of "uniform" and "union" these are the pairs wanted; of "representative" every row of a tile
        sees the tile's list. Needs SQ * L indices for a union whose rows differ.
        """
        from maskplan.lower.token_table import plan_of

        return plan_of(self) if self.plan is None else self.plan

    @untransformed
    def __str__(self) -> str:
        if self.wanted_pairs == NOT_COUNTED:
            return repr(self)
        from maskplan.lower.token_report import in_words

        return in_words(self)

    def __repr__(self) -> str:
        start = (
            f"TokenTiles({self.policy}, {self.form}, {self.seqlen_q} x {self.seqlen_k} tokens, "
            f"batch={self.batch}, heads={self.heads}, {self.valid_counts.shape[2]} tiles of "
            f"{self.tile_rows} rows, "
        )
        if self.wanted_pairs == NOT_COUNTED:
            return f"{start}on {self.device})"
        return (
            f"{start}wanted={self.wanted_pairs}, kept={self.kept_pairs}, "
            f"spurious={self.spurious_pairs})"
        )


register(TokenTiles, "maskplan.TokenTiles")
