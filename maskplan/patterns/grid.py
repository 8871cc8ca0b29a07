"""The latent grid of a video: frames, rows, columns, and the text that goes with it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Self

from maskplan.errors import PlanError, PlanTypeError, sentence
from maskplan.geometry import MAX_SEQLEN, flag, integer
from maskplan.provenance import Provenance

# Latent sizes after patching, (t, h, w, text, text_first): models and papers as named in the key.
_PRESETS: dict[str, tuple[int, int, int, int, bool]] = {
    "wan2.1-480p": (21, 30, 52, 0, False),  # 81 frames, 832 x 480
    "wan2.1-720p": (21, 45, 80, 0, False),  # 81 frames, 1280 x 720
    "wan2.1-sta": (18, 48, 80, 0, False),  # 69 frames, 1280 x 768, FastVideo
    "hunyuanvideo-720p": (33, 45, 80, 256, False),  # 129 frames, 1280 x 720
    "hunyuanvideo-sta": (30, 48, 80, 256, False),  # 117 frames, 1280 x 768, FastVideo
    "hunyuanvideo-768p": (33, 48, 80, 256, False),  # 129 frames, 1280 x 768, draft attention
    "stepvideo-sta": (36, 48, 48, 0, False),  # 768 x 768, FastVideo
    "cogvideox-480p": (13, 30, 45, 226, True),  # 49 frames, 720 x 480
    "cogvideox1.5-768p": (11, 48, 85, 226, True),  # 81 frames, 1360 x 768
    "mochi-480p": (28, 30, 53, 256, False),  # 163 frames, 848 x 480
    "magi1-720p": (24, 45, 80, 0, False),  # 96 frames in flight: 4 chunks of 24
}


@dataclass(frozen=True, slots=True)
class Grid:
    """T x H x W video tokens, with text tokens after or before them.

    In raster order, video token (t, h, w) is (t * H + h) * W + w after the start of the video.

    Attributes:
        t: latent frames, at least 1.
        h: rows of a frame, at least 1.
        w: columns of a frame, at least 1.
        text: text tokens, from 0 up.
        text_first: whether the text comes before the video.

    Raises:
        PlanTypeError: if a size is not an integer.
        PlanError: if one is too small, or there are 2**31 tokens or more.
    """

    t: int
    h: int
    w: int
    text: int = 0
    text_first: bool = False

    def __post_init__(self) -> None:
        for name, low in (("t", 1), ("h", 1), ("w", 1), ("text", 0)):
            object.__setattr__(self, name, integer(getattr(self, name), name, low=low))
        integer(self.seqlen, "t * h * w + text", high=MAX_SEQLEN)
        object.__setattr__(self, "text_first", flag(self.text_first, "text_first"))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(t, h, w)."""
        return self.t, self.h, self.w

    @property
    def video_tokens(self) -> int:
        """T * H * W."""
        return self.t * self.h * self.w

    @property
    def frame_tokens(self) -> int:
        """H * W."""
        return self.h * self.w

    @property
    def seqlen(self) -> int:
        """All tokens, video and text."""
        return self.video_tokens + self.text

    @property
    def video_start(self) -> int:
        """First video token in raster order."""
        return self.text if self.text_first else 0

    @property
    def text_start(self) -> int:
        """First text token in raster order."""
        return 0 if self.text_first else self.video_tokens

    def frame_blocks(self, block: int) -> Fraction:
        """Blocks per frame. Where it is not whole, blocks drift against frames by that much.

        >>> Grid(21, 45, 80).frame_blocks(128)
        Fraction(225, 8)
        """
        return Fraction(self.frame_tokens, integer(block, "block", low=1))

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, as `Provenance.grid` keeps them."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(**fields)

    @classmethod
    def from_provenance(cls, provenance: Provenance) -> Self | None:
        """The grid a plan's tokens lie on, or None where it has none."""
        return None if provenance.grid is None else cls.from_json(provenance.grid)

    @staticmethod
    def presets() -> tuple[str, ...]:
        """Names that `preset` knows: a model and a resolution or a setting."""
        return tuple(_PRESETS)

    @classmethod
    def preset(cls, name: str) -> Self:
        """The grid of a model at a resolution.

        Args:
            name: one of `Grid.presets()`, such as "wan2.1-720p".

        Raises:
            PlanTypeError: if there is no such preset.
        """
        if name not in _PRESETS:
            raise PlanTypeError(
                sentence(
                    what="unknown preset",
                    where="name",
                    got=repr(name),
                    wanted=", ".join(map(repr, _PRESETS)),
                    remedy="pass one of these, or the sizes: Grid(t, h, w)",
                )
            )
        return cls(*_PRESETS[name])


def triple(values: tuple[int, int, int], name: str) -> tuple[int, int, int]:
    """`values` as three integers (t, h, w), each at least 1.

    Raises:
        PlanTypeError: if they are not three integers.
        PlanError: if one is below 1.
    """
    if not isinstance(values, (tuple, list)) or len(values) != 3:
        raise PlanTypeError(
            sentence(
                what="size is not a triple",
                where=name,
                got=repr(values),
                wanted="(t, h, w)",
                remedy=f"pass {name}=(6, 8, 8), say",
            )
        )
    t, h, w = (
        integer(value, f"{name}[{axis}]", low=1) for value, axis in zip(values, "thw", strict=True)
    )
    return t, h, w


def window_on(
    window: tuple[int, int, int], sizes: tuple[int, int, int], *, clamp: bool
) -> tuple[int, int, int]:
    """`window` as three integers that fit the axes of a grid of `sizes` tiles.

    With `clamp`, a side larger than its axis is cut to the axis, which it then covers.

    Raises:
        PlanTypeError: if it is not three integers.
        PlanError: if a side is below 1, or larger than its axis and not clamped.
    """
    clamp = flag(clamp, "clamp")
    sides = triple(window, "window")
    for axis, side, size in zip("thw", sides, sizes, strict=True):
        if side > size and not clamp:
            raise PlanError(
                sentence(
                    what="window is larger than the grid of tiles",
                    where=f"window, axis {axis}",
                    got=side,
                    wanted=f"at most {size} tiles",
                    remedy=f"pass {size} to see the whole axis, or clamp=True to cut windows so",
                )
            )
    t, h, w = (min(side, size) for side, size in zip(sides, sizes, strict=True))
    return t, h, w
