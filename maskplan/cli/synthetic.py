"""Queries and keys made up here: noise, or a smooth field over the places of the tokens.

They stand for no model. Noise attends evenly, which is the worst case of any sparse pattern; in the
smooth field scores fall off with the distance of tokens, the case that local patterns are made for.
"""

import torch
from torch import Tensor

from maskplan.errors import PlanError, sentence

KINDS = ("random", "smooth")
REACH = 0.1  # share of an axis over which smooth scores fall to 0.6 of the most
PEAK = 8.0  # a token's score of itself in the smooth field


def places(shape: tuple[int, ...], *, text: int = 0, text_first: bool = False) -> Tensor:
    """Places of tokens in raster order on axes of 0 to 1: float32 [tokens, axes], text as NaN."""
    lines = [torch.arange(size, dtype=torch.float32) / max(size - 1, 1) for size in shape]
    video = torch.stack(torch.meshgrid(*lines, indexing="ij"), dim=-1).reshape(-1, len(shape))
    words = torch.full((text, len(shape)), torch.nan)
    return torch.cat([words, video] if text_first else [video, words])


def tokens(kind: str, where: Tensor, *, heads: int, head_dim: int, seed: int, role: str) -> Tensor:
    """Queries or keys of tokens.

    Args:
        kind: "random", standard normal numbers; or "smooth", random Fourier features of the places,
            with scores of up to `PEAK` that fall off with distance; text is noise there as well.
        where: float32 [tokens, axes], as `places`.
        heads: heads, each with features of its own.
        head_dim: D.
        seed: equal seeds give equal numbers.
        role: "q" or "k": noise differs between the two, features do not.

    Returns:
        float32 [1, tokens, heads, D].

    Raises:
        PlanError: if `kind` is unknown.
    """
    if kind not in KINDS:
        raise PlanError(
            sentence(
                what="unknown kind of synthetic queries and keys",
                where="--synthetic",
                got=f"{kind!r:.40}",
                wanted=" or ".join(KINDS),
                remedy="name one, or pass files of a model's own with --q and --k",
            )
        )
    own = torch.Generator().manual_seed(2 * seed + (role == "k"))
    noise = torch.randn((1, len(where), heads, head_dim), generator=own)
    if kind == "random":
        return noise
    shared = torch.Generator().manual_seed(seed)
    waves = torch.randn((where.shape[1], heads * head_dim), generator=shared) / REACH
    phases = 2 * torch.pi * torch.rand(heads * head_dim, generator=shared)
    field = torch.cos(where.nan_to_num() @ waves + phases) * (2 / head_dim) ** 0.5
    size = (PEAK * head_dim**0.5) ** 0.5
    field = size * field.view(1, len(where), heads, head_dim)
    text = where.isnan().any(dim=1)[None, :, None, None]
    return torch.where(text, noise, field)
