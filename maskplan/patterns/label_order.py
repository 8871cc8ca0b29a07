"""Orders of tokens by cluster, one for each head: tokens of one label next to each other."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from maskplan.build.host import index_tensor, rank
from maskplan.errors import PlanError, sentence
from maskplan.geometry import flag, integer
from maskplan.patterns.token_order import PAD

LAYOUTS = ("bshd", "bhsd")


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelOrder:
    """Tokens of each (batch, head) sorted by label; equal labels keep their order.

    Queries and keys have labels of their own, and so an order each. Text has no labels and stays at
    its end. Each cluster takes up a multiple of `multiple` slots, -1 filling up; then heads differ
    in slots, and all get as many as the longest.

    Attributes:
        labels: int32 or int64 [batch, heads, tokens], each in [0, clusters).
        clusters: how many clusters there are; some may be empty.
        text: text tokens.
        text_first: whether the text comes before the labelled tokens.
        multiple: slots that a cluster is filled up to; 1 is compact.

    Raises:
        PlanTypeError: if `labels` has another dtype or rank, or a number is no integer.
        PlanError: if a label is out of range.
    """

    labels: Tensor
    clusters: int
    text: int = 0
    text_first: bool = False
    multiple: int = 1

    def __post_init__(self) -> None:
        for name, low in (("clusters", 1), ("text", 0), ("multiple", 1)):
            object.__setattr__(self, name, integer(getattr(self, name), name, low=low))
        object.__setattr__(self, "text_first", flag(self.text_first, "text_first"))
        labels = index_tensor(self.labels, "labels")
        rank(labels, "labels", (3,), "[batch, heads, tokens]", "add or merge leading axes")
        bad = (labels < 0) | (labels >= self.clusters)
        if bool(bad.any()):
            place = tuple(bad.nonzero()[0].tolist())
            raise PlanError(
                sentence(
                    what="label out of range",
                    where=f"labels[{', '.join(map(str, place))}]",
                    got=int(labels[place]),
                    wanted=f"0 <= label < {self.clusters}",
                    remedy="pass the number of clusters that the labels were made with",
                )
            )

    @property
    def batch(self) -> int:
        """Batch size."""
        return int(self.labels.shape[0])

    @property
    def heads(self) -> int:
        """Heads."""
        return int(self.labels.shape[1])

    @property
    def tokens(self) -> int:
        """Tokens in and out, text included."""
        return int(self.labels.shape[2]) + self.text

    @cached_property
    def counts(self) -> Tensor:
        """Tokens of each cluster, int64 [batch, heads, clusters]."""
        ones = torch.ones_like(self.labels, dtype=torch.int64)
        empty = torch.zeros(self.batch, self.heads, self.clusters, dtype=torch.int64, device="cpu")
        return empty.scatter_add_(2, self.labels.long(), ones)

    @cached_property
    def starts(self) -> Tensor:
        """First slot of each cluster, int64 [batch, heads, clusters]."""
        slots = -(-self.counts // self.multiple) * self.multiple
        return slots.cumsum(2) - slots + (self.text if self.text_first else 0)

    @cached_property
    def seqlen(self) -> int:
        """Slots, those that hold nothing included."""
        slots = -(-self.counts // self.multiple) * self.multiple
        return int(slots.sum(2).max()) + self.text

    @property
    def text_start(self) -> int:
        """First slot of the text."""
        return 0 if self.text_first else self.seqlen - self.text

    @cached_property
    def inverse(self) -> Tensor:
        """Slot of each token, text included: int64 [batch, heads, tokens]."""
        by_label = torch.argsort(self.labels, dim=2, stable=True)
        ordered = self.labels.long().gather(2, by_label)
        before = self.counts.cumsum(2) - self.counts
        place = torch.arange(self.labels.shape[2], device="cpu") - before.gather(2, ordered)
        slots = torch.empty_like(by_label).scatter_(
            2, by_label, self.starts.gather(2, ordered) + place
        )
        text = (self.text_start + torch.arange(self.text, device="cpu")).expand(
            self.batch, self.heads, -1
        )
        return torch.cat([text, slots] if self.text_first else [slots, text], dim=2)

    @cached_property
    def slots(self) -> Tensor:
        """Token in each slot, or -1: int64 [batch, heads, seqlen]."""
        slots = torch.full((self.batch, self.heads, self.seqlen), PAD, device="cpu")
        tokens = torch.arange(self.tokens, device="cpu").expand_as(self.inverse)
        return slots.scatter_(2, self.inverse, tokens)

    def apply(self, x: Tensor, *, layout: str = "bshd") -> Tensor:
        """`x` with each head's tokens put into its order; -1 slots are 0.

        Args:
            x: [batch, tokens, heads, D], or [batch, heads, tokens, D] with layout="bhsd".
            layout: "bshd" or "bhsd".

        Returns:
            The same with `seqlen` slots for tokens.

        Raises:
            PlanError: if `x` has other sizes.
        """
        slots = self._placed(self.slots.to(x.device), x, layout, self.tokens)
        taken = x.gather(_axis(layout), slots.clamp(min=0).expand(*slots.shape[:3], x.shape[3]))
        return taken if self.seqlen == self.tokens else taken.masked_fill(slots == PAD, 0)

    def undo(self, x: Tensor, *, layout: str = "bshd") -> Tensor:
        """The inverse of `apply`: tokens as they came; -1 slots are dropped.

        Raises:
            PlanError: if `x` has other sizes.
        """
        inverse = self._placed(self.inverse.to(x.device), x, layout, self.seqlen)
        return x.gather(_axis(layout), inverse.expand(*inverse.shape[:3], x.shape[3]))

    def _placed(self, index: Tensor, x: Tensor, layout: str, length: int) -> Tensor:
        """`index` [batch, heads, n] with the axes of `x`, and one for D."""
        if layout not in LAYOUTS:
            raise PlanError(
                sentence(
                    what="unknown layout",
                    where="layout",
                    got=repr(layout),
                    wanted=" or ".join(map(repr, LAYOUTS)),
                    remedy="say where the tokens' axis is",
                )
            )
        wanted = (self.batch, self.heads, length)
        sizes = (
            (x.shape[0], x.shape[3 - _axis(layout)], x.shape[_axis(layout)]) if x.ndim == 4 else ()
        )
        if sizes != wanted:
            raise PlanError(
                sentence(
                    what="tensor does not have the tokens of the order",
                    where="x",
                    got=f"{list(x.shape)} in layout {layout}",
                    wanted=f"batch {wanted[0]}, heads {wanted[1]}, {wanted[2]} tokens",
                    remedy="use the order made for these heads; k and v have the keys' order",
                )
            )
        return index[..., None] if layout == "bhsd" else index.transpose(1, 2)[..., None]


def _axis(layout: str) -> int:
    """Axis of the tokens."""
    return 1 if layout == "bshd" else 2
