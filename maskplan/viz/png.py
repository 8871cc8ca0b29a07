"""Images as PNG files, which any page shows without scripts and any program reads."""

import struct
import zlib
from base64 import b64encode

import numpy as np

from maskplan.viz.palette import Image

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encoded(image: Image) -> bytes:
    """`image`, uint8 [height, width, 3], as a PNG file."""
    height, width, _ = image.shape
    colours, numbers = np.unique(image.reshape(-1, 3), axis=0, return_inverse=True)
    few = len(colours) <= 256
    pixels = numbers.astype(np.uint8).reshape(height, width) if few else image
    kind = 3 if few else 2  # a palette, or RGB
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)  # each line unfiltered
    chunks = [
        _chunk(b"IHDR", header),
        _chunk(b"PLTE", colours.tobytes()) if few else b"",
        _chunk(b"IDAT", zlib.compress(lines, 9)),
        _chunk(b"IEND", b""),
    ]
    return _SIGNATURE + b"".join(chunks)


def data_uri(image: Image) -> str:
    """The PNG file as the `src` of an `<img>`."""
    return "data:image/png;base64," + b64encode(encoded(image)).decode("ascii")


def _chunk(kind: bytes, content: bytes) -> bytes:
    size = struct.pack(">I", len(content))
    return size + kind + content + struct.pack(">I", zlib.crc32(kind + content))
