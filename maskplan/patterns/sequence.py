"""A pattern's sequence: which slots are queries and keys, and what text sees."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from maskplan.build.slices import Slices, boxes
from maskplan.errors import PlanError, sentence
from maskplan.geometry import Geometry
from maskplan.patterns.token_order import TokenOrder
from maskplan.provenance import Provenance

IntArray = np.ndarray[Any, np.dtype[np.int64]]

QUERIES = ("all", "video")


@dataclass(frozen=True, slots=True)
class Sequence:
    """Tokens in an order, all of them keys, and as queries all or the video's alone.

    With queries="video" a plan is SQ x SK = video slots x (video + text) slots: self-attention and
    cross-attention to the text in one, as models run it whose text is no query.

    Attributes:
        order: slots of video and text.
        queries: "all" or "video".

    Raises:
        PlanError: if `queries` is neither.
    """

    order: TokenOrder
    queries: str = "all"

    def __post_init__(self) -> None:
        if self.queries not in QUERIES:
            raise PlanError(
                sentence(
                    what="unknown choice of queries",
                    where="queries",
                    got=repr(self.queries),
                    wanted=" or ".join(map(repr, QUERIES)),
                    remedy="say whether text tokens are queries too",
                )
            )

    @property
    def query_start(self) -> int:
        """Slot of the first query."""
        return int(self.order.tile_starts[0]) if self.queries == "video" else 0

    @property
    def query_stop(self) -> int:
        """One past the slot of the last query."""
        return int(self.order.tile_starts[-1]) if self.queries == "video" else self.order.seqlen

    @property
    def text_queries(self) -> bool:
        """Whether text tokens are among the queries."""
        return self.queries == "all" and self.order.grid.text > 0

    def geometry(self, block_size: tuple[int, int]) -> Geometry:
        """SQ and SK in slots."""
        return Geometry(
            seqlen_q=self.query_stop - self.query_start,
            seqlen_k=self.order.seqlen,
            block_size=block_size,
        )

    def provenance(self, builder: str, **parameters: object) -> Provenance:
        """How a plan on this sequence was made, with grid and order."""
        if self.queries != "all":
            parameters["queries"] = self.queries
        return Provenance(
            builder=builder,
            parameters=parameters,
            grid=self.order.grid.to_json(),
            token_order=self.order.to_json(),
        )

    def tiles(self) -> tuple[IntArray, IntArray]:
        """(first slot, one past the last) of the tokens of each tile, int64 [tiles] each."""
        starts = cast("IntArray", self.order.tile_starts[:-1].numpy())
        return starts, starts + cast("IntArray", self.order.tile_counts.numpy())

    def taken(self, *slices: Slices) -> Slices:
        """Slices over all slots, as one list that counts queries from `query_start`."""
        joined = np.concatenate(slices)
        start, stop = self.query_start, self.query_stop
        if (start, stop) == (0, self.order.seqlen):
            return joined
        q0, q1 = joined[:, 0].clip(start, stop) - start, joined[:, 1].clip(start, stop) - start
        low, high = joined[:, 4] + start, joined[:, 5] + start
        moved = np.stack([q0, q1, joined[:, 2], joined[:, 3], low, high], axis=1)
        return moved[q0 < q1]

    def text(self, length: int | None = None) -> Slices:
        """Every token sees the text, and text sees every token.

        Args:
            length: text tokens that count; None is all of them.
        """
        count = self.order.grid.text if length is None else length
        if not count:
            return boxes(*np.empty((4, 0), dtype=np.int64))
        starts, stops = self.tiles()
        text = np.array([self.order.text_start])
        keys = joined_runs(np.append(starts, text), np.append(stops, text + count))
        videos = joined_runs(starts, stops)
        across = np.ones(len(keys[0]), dtype=np.int64)
        down = np.ones(len(videos[0]), dtype=np.int64)
        return np.concatenate(
            [
                boxes(across * text, across * (text + count), *keys),
                boxes(*videos, down * text, down * (text + count)),
            ]
        )


def joined_runs(starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray]:
    """Disjoint intervals with those that touch made one."""
    order = np.argsort(starts)
    starts, stops = starts[order], stops[order]
    begins = np.append(True, starts[1:] != stops[:-1])
    return starts[begins], stops[np.append(begins[1:], True)]
