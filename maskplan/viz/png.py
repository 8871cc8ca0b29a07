"""Images as PNG files, which any page shows without scripts and any program reads."""

import struct
import zlib
from base64 import b64encode

from maskplan.viz.palette import Image

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encoded(image: Image) -> bytes:
    """`image`, uint8 [height, width, 3], as a PNG file."""
    height, width, _ = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    lines = b"".join(b"\0" + line.tobytes() for line in image)  # each line unfiltered
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")
    return _SIGNATURE + body


def data_uri(image: Image) -> str:
    """The PNG file as the `src` of an `<img>`."""
    return "data:image/png;base64," + b64encode(encoded(image)).decode("ascii")


def _chunk(kind: bytes, content: bytes) -> bytes:
    size = struct.pack(">I", len(content))
    return size + kind + content + struct.pack(">I", zlib.crc32(kind + content))
