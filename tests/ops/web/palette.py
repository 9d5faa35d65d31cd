"""PNG pictures made small: 256 colours, which a console's page hardly exceeds."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = 256
COMMON = 96
RGB = 2  # the colour type that browsers write, 8 bits each
INDEXED = 3


def shrink(png: bytes) -> bytes:
    """Write a picture with 256 of its colours; the others become their nearest.

    Args:
        png: As Chromium writes it: 8 bits, RGB, not interlaced.
    """
    chunks = dict(_chunks(png))
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, kind) == (8, RGB)
    rows = list(_rows(zlib.decompress(chunks[b"IDAT"]), width * 3))
    pixels = [[row[at : at + 3] for at in range(0, width * 3, 3)] for row in rows]
    counted = Counter(pixel for row in pixels for pixel in row)
    palette, places = _choose(counted)
    data = b"".join(b"\0" + bytes(places[pixel] for pixel in row) for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, INDEXED, 0, 0, 0)
    parts = [
        (b"IHDR", header),
        (b"PLTE", b"".join(palette)),
        (b"IDAT", zlib.compress(data, 9)),
        (b"IEND", b""),
    ]
    return SIGNATURE + b"".join(_chunk(name, content) for name, content in parts)


def _choose(counted: Counter[bytes]) -> tuple[list[bytes], dict[bytes, int]]:
    """Choose the colours, and for each colour of the picture the nearest of them.

    The commonest are kept; then, one by one, that which would be missed most.
    """
    palette = [colour for colour, _ in counted.most_common(COMMON)]
    near = {
        colour: min((_distance(colour, one), at) for at, one in enumerate(palette))
        for colour in counted
    }
    while len(palette) < min(COLOURS, len(counted)):
        missed = max(near, key=lambda colour: near[colour][0] * counted[colour] ** 0.5)
        for colour, best in near.items():
            near[colour] = min(best, (_distance(colour, missed), len(palette)))
        palette.append(missed)
    return palette, {colour: place for colour, (_, place) in near.items()}


def _distance(one: bytes, other: bytes) -> int:
    red, green, blue = (a - b for a, b in zip(one, other, strict=True))
    return 2 * red * red + 4 * green * green + blue * blue


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Give name and content of each chunk; all data as one."""
    at, data = len(SIGNATURE), b""
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        name, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        data += content if name == b"IDAT" else b""
        yield name, content if name != b"IDAT" else data
        at += size + 12


def _chunk(name: bytes, content: bytes) -> bytes:
    checked = name + content
    return (
        struct.pack(">I", len(content))
        + checked
        + struct.pack(">I", zlib.crc32(checked))
    )


def _rows(data: bytes, size: int) -> Iterator[bytes]:
    """Take the filters off (PNG, section 9)."""
    before = bytes(size)
    for at in range(0, len(data), size + 1):
        row = bytearray(data[at + 1 : at + 1 + size])
        kind = data[at]
        for place in range(size):
            left = row[place - 3] if place >= 3 else 0
            corner = before[place - 3] if place >= 3 else 0
            row[place] = (row[place] + _guess(kind, left, before[place], corner)) & 255
        before = bytes(row)
        yield before


def _guess(kind: int, left: int, above: int, corner: int) -> int:
    if kind < 4:
        return (0, left, above, (left + above) // 2)[kind]
    guess = left + above - corner
    return min((left, above, corner), key=lambda value: abs(guess - value))
