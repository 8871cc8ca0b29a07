"""A covering array of what a backward can be asked for, as cases of small problems."""

from dataclasses import dataclass

import numpy as np

from kernels_sm100.backward_config import BackwardConfig
from tests.kernels.backward import configs
from tests.kernels.backward.walks import TILE
from tests.kernels.forward import masks

MASKS = ("full", "none", "tokens", "causal", "skewed", "holes")
LISTS = ("one", "a KV head", "a query head")
BATCHES = ("one", "share lists", "differ")
LENGTHS = ("one", "part", "whole", "ragged")  # of a tile


@dataclass(frozen=True)
class Case:
    """One call: a configuration by its name in `configs.ALL`, and values of the four lists."""

    name: str
    mask: str
    lists: str
    batches: str
    queries: str
    keys: str

    @property
    def config(self) -> BackwardConfig:
        return configs.ALL[self.name]

    @property
    def kv_heads(self):
        return 2 if self.lists == "a KV head" else 1

    @property
    def batch(self):
        return 1 if self.batches == "one" else 2

    def shape(self):
        """[PB, PH, SQ, SK] of its masks."""
        batches = 2 if self.batches == "differ" else 1
        heads = {"one": 1, "a KV head": 2, "a query head": self.config.group}[self.lists]
        seqlen_q = length(self.queries, TILE // self.config.rows_per_token)
        return batches, heads, seqlen_q, length(self.keys, TILE)

    def masks(self, seed):
        """Bool [PB, PH, SQ, SK]; every pattern keeps a pair but where the mask is "none"."""
        shape = self.shape()
        if self.mask == "full":
            return np.ones(shape, dtype=bool)
        if self.mask == "none":
            return np.zeros(shape, dtype=bool)
        if self.mask == "causal":
            return np.broadcast_to(masks.causal(*shape[2:]), shape).copy()
        if self.mask == "skewed":
            return np.broadcast_to(masks.skewed(*shape[2:], seed=seed), shape).copy()
        if self.mask == "tokens":
            kept = np.random.default_rng(seed).random(shape) < 0.6
        else:
            kept = np.ones(shape, dtype=bool)
            kept[..., 1::3, :] = False
            kept[..., shape[2] // 2 :, : shape[3] // 3] = False
            kept[..., 5:40] = False
            kept[..., TILE : 2 * TILE] = False
        kept[..., 0, 0] = True
        return kept


def length(kind, tile):
    """Tokens of a sequence that ends where `kind` says, at most three tiles of them."""
    return {"one": 1, "part": 3 * tile // 4, "whole": 2 * tile, "ragged": 2 * tile + tile // 3 + 1}[
        kind
    ]


CASES = [
    Case("q_128", "tokens", "a KV head", "one", "one", "whole"),
    Case("q_64", "skewed", "a query head", "differ", "part", "part"),
    Case("q_64", "holes", "a query head", "share lists", "one", "ragged"),
    Case("turns", "none", "a query head", "share lists", "part", "one"),
    Case("turns", "holes", "a query head", "share lists", "one", "whole"),
    Case("up", "tokens", "one", "share lists", "whole", "one"),
    Case("up", "full", "a KV head", "one", "part", "ragged"),
    Case("down", "causal", "a KV head", "differ", "one", "part"),
    Case("down", "full", "one", "differ", "whole", "whole"),
    Case("down", "causal", "one", "one", "one", "whole"),
    Case("packed", "holes", "one", "one", "one", "one"),
    Case("packed", "skewed", "a KV head", "share lists", "whole", "part"),
    Case("packed", "full", "one", "one", "ragged", "part"),
    Case("packed", "causal", "one", "differ", "part", "ragged"),
    Case("split", "causal", "a query head", "one", "whole", "one"),
    Case("split", "tokens", "a query head", "one", "ragged", "part"),
    Case("split", "full", "one", "share lists", "one", "one"),
    Case("split", "holes", "a KV head", "differ", "part", "one"),
    Case("split", "skewed", "one", "one", "one", "whole"),
    Case("split", "holes", "one", "one", "whole", "ragged"),
    Case("full", "none", "one", "one", "ragged", "part"),
    Case("full", "skewed", "a query head", "one", "part", "one"),
    Case("k_128", "full", "a query head", "one", "one", "one"),
    Case("k_64", "skewed", "one", "one", "one", "part"),
    Case("k_64", "holes", "a KV head", "differ", "whole", "part"),
    Case("k_64", "none", "one", "share lists", "whole", "whole"),
    Case("k_64", "causal", "a KV head", "share lists", "ragged", "one"),
    Case("k_packed", "holes", "one", "differ", "ragged", "whole"),
    Case("k_packed", "tokens", "one", "differ", "part", "whole"),
    Case("k_packed", "skewed", "a KV head", "one", "ragged", "ragged"),
    Case("k_down", "causal", "one", "share lists", "part", "one"),
    Case("k_down", "none", "a KV head", "differ", "one", "ragged"),
    Case("k_down", "tokens", "one", "one", "one", "ragged"),
]
