"""Colours of pictures: told apart by every kind of colour vision, and in grey.

From the set of Okabe and Ito: blue and orange differ in hue for everyone, and in lightness too.
"""

from typing import Any

import numpy as np

from maskplan.viz.raster import Floats, Raster

Rgb = tuple[int, int, int]
Image = np.ndarray[Any, np.dtype[np.uint8]]

FULL: Rgb = (0, 84, 147)
MASK: Rgb = (230, 159, 0)
DROPPED: Rgb = (242, 227, 194)  # what a partial block does not keep, seen from near
EMPTY: Rgb = (246, 246, 244)
PADDING: Rgb = (190, 190, 190)
ONLY_A: Rgb = (0, 114, 178)
ONLY_B: Rgb = (213, 94, 0)
BOTH: Rgb = (160, 160, 160)
_STEPS = 12
_BAYER = (np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]]) + 0.5) / 16
LEGEND = {"full": FULL, "partial": MASK, "empty": EMPTY, "padding": PADDING}

# Densities, from nothing to everything: one hue, ever darker.
_LOW, _HIGH = np.array([247.0, 251.0, 255.0]), np.array([8.0, 48.0, 107.0])


def hex_of(colour: Rgb) -> str:
    """`colour` as HTML and matplotlib take it: "#rrggbb"."""
    return "#" + "".join(f"{part:02x}" for part in colour)


def strength(share: Floats) -> Floats:
    """How strongly a share of a pixel is painted, 0 to 1.

    Nothing is 0 and only all is 1. What is between is drawn up, for one block of a hundred has to
    be seen, and in a few steps, which are as many as an eye tells apart and make small files.
    """
    step = np.floor(_STEPS * np.sqrt(share.clip(0, 1))) / _STEPS
    return np.where(share > 0, 0.2 + 0.8 * step, 0.0)


def mixed(shares: list[tuple[Floats, Rgb]], ground: Floats) -> Image:
    """uint8 [height, width, 3]: `shares` over colours `ground` [height, width, 3], drawn up.

    A pixel that has several colours takes one of them, neighbours in proportion (Bayer's dither):
    blue and orange averaged would be an olive that no legend names.
    """
    height, width = ground.shape[:2]
    total = sum((share for share, _ in shares), np.zeros((height, width)))
    threshold = np.tile(_BAYER, (-(-height // 4), -(-width // 4)))[:height, :width] * total
    paint, below = np.zeros(ground.shape), np.zeros((height, width))
    for share, colour in shares:
        chosen = (below <= threshold) & (threshold < below + share)
        paint[chosen] = colour
        below = below + share
    alpha = strength(total)[..., None]
    image: Image = np.rint(paint * alpha + ground * (1 - alpha)).astype(np.uint8)
    return image


def coloured(raster: Raster) -> Image:
    """uint8 [height, width, 3] of a raster: the colours of LEGEND, mixed where a pixel mixes."""
    whole = (raster.empty + raster.padding)[..., None]
    ground = raster.empty[..., None] * np.array(EMPTY, dtype=np.float64)
    ground = ground + raster.padding[..., None] * np.array(PADDING, dtype=np.float64)
    ground = np.where(whole > 0, ground / np.where(whole > 0, whole, 1.0), np.array(EMPTY))
    inside = 1.0 - raster.padding
    of_inside = np.where(inside > 0, inside, 1.0)
    return mixed([(raster.full / of_inside, FULL), (raster.mask / of_inside, MASK)], ground)


def shaded(share: Floats) -> Image:
    """uint8 [..., 3]: shares from 0 (pale) to 1 (dark blue)."""
    at = share.clip(0, 1)[..., None]
    image: Image = np.rint(_LOW * (1 - at) + _HIGH * at).astype(np.uint8)
    return image
