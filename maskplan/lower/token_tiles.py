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

import torch
from torch import Tensor

from maskplan.bits import unpack
from maskplan.build.topk import from_topk
from maskplan.lower.packing import register
from maskplan.lower.tensors import FILL, BlockSparseTensors
from maskplan.plan import Plan

KEYS = 128  # keys of a logical block, and of an aligned one
MAX_COVERAGE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TokenTiles:
    """What a kernel that gathers tokens walks, tile by tile. A frozen pytree of tensors.

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
        wanted_pairs: (row, key) pairs asked for, over all (batch, head).
        kept_pairs: of these, the ones attended: all but for "representative".
        visited_pairs: pairs that a kernel computes, wanted or not.
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

    @staticmethod
    def from_topk(
        indices: Tensor,
        seqlen_k: int,
        *,
        policy: str = "uniform",
        tile_rows: int = 128,
        group: int = 1,
        kv_heads: int | None = None,
        max_coverage: float = MAX_COVERAGE,
    ) -> "TokenTiles":
        """Tiles straight from lists of selected keys, with no plan in between.

        -1 is no key, in any slot; a key listed twice counts once; lists may differ in length. Work
        is O(indices + tiles * words touched), memory a row of SK bits for each list of a tile and
        thread, beside the result.

        Args:
            indices: int32 or int64 [batch, heads, SQ, topk] on the CPU, any strides, of keys local
                to their batch. `expand` over batch or heads costs nothing.
            seqlen_k: SK, in tokens.
            policy: "uniform", "union" or "representative".
            tile_rows: packed rows of a Q tile: 128 or 256.
            group: query heads packed into the rows of a tile, row = token * group + head in group;
                1 without PackGQA.
            kv_heads: HK, where `indices` may hold lists of kv_heads * group query heads; by default
                its heads are KV heads.
            max_coverage: the share of keys beyond which a union of differing queries is refused.

        Raises:
            PlanTypeError: if an argument has the wrong dtype or rank.
            PlanError: if an index is out of range, with its place; if a tile's queries differ
                ("uniform"), with the first such tile; if their union covers too much; or if heads,
                rows or the policy are none of those above.
        """
        from maskplan.lower.token_lists import of_topk

        return of_topk(
            indices, seqlen_k, policy=policy, tile_rows=tile_rows, group=group, kv_heads=kv_heads,
            max_coverage=max_coverage,
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
    def lost_pairs(self) -> int:
        """Wanted pairs that are not attended."""
        return self.wanted_pairs - self.kept_pairs

    @property
    def spurious_pairs(self) -> int:
        """Pairs visited that nobody wanted: masked by bits, or attended by "representative"."""
        return self.visited_pairs - self.kept_pairs

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

    def to_plan(self) -> Plan:
        """The exact plan of the pairs these tiles attend, in blocks of (tokens of a tile, 128).

        Of "uniform" and "union" these are the pairs wanted; of "representative" every row of a tile
        sees the tile's list. Needs SQ * L indices for a union whose rows differ.
        """
        if self.plan is not None:
            return self.plan
        table = self.tile_token_indices
        assert table is not None
        size = (self.tile_tokens, KEYS)
        if self.row_bits is None:
            return from_topk(
                table, self.seqlen_k, block_size=size, rows="block", seqlen_q=self.seqlen_q
            )
        batch, heads, tiles, width = table.shape
        lists = self.lists_per_token
        own = self.row_bits[:, :, :, :: self.rows_per_token // lists]
        kept = torch.where(unpack(own, width), table[:, :, :, None], FILL)
        kept = kept.reshape(batch, heads, tiles * self.tile_tokens, lists, width)
        by_head = kept[:, :, : self.seqlen_q].transpose(2, 3).flatten(1, 2)
        return from_topk(by_head, self.seqlen_k, block_size=size)

    def __repr__(self) -> str:
        return (
            f"TokenTiles({self.policy}, {self.form}, {self.seqlen_q} x {self.seqlen_k} tokens, "
            f"batch={self.batch}, heads={self.heads}, {self.valid_counts.shape[2]} tiles of "
            f"{self.tile_rows} rows, wanted={self.wanted_pairs}, kept={self.kept_pairs}, "
            f"spurious={self.spurious_pairs})"
        )


register(TokenTiles, "maskplan.TokenTiles")
