"""The size of a picture, from its header."""

from __future__ import annotations

_PNG = b"\x89PNG\r\n\x1a\n"
# Start-of-frame markers of all kinds of JPEG (ITU T.81, table B.1). C4, C8 and CC mean other
# things.
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE_MARKERS = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length
_MAX_MARKERS = 2000  # the limit on markers and fill bytes before a picture's size


def pixels(data: bytes) -> tuple[int, int] | None:
    """Return the width and height from the header of a PNG, JPEG, GIF or WebP file. Returns None
    for any other file, and for one that ends before its size."""
    size = None
    if data[:8] == _PNG and data[12:16] == b"IHDR" and len(data) >= 24:
        size = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    elif data[:4] == b"GIF8" and len(data) >= 10:
        size = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    elif data[:2] == b"\xff\xd8":
        size = _jpeg(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        size = _webp(data)
    return size if size and all(size) else None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    for _ in range(_MAX_MARKERS):
        if at + 9 > len(data) or data[at] != 0xFF:
            return None
        kind = data[at + 1]
        if kind == 0xFF:  # any number of fill bytes may precede a marker
            at += 1
        elif kind in _BARE_MARKERS:
            at += 2
        elif kind in _FRAME_MARKERS:
            height, width = data[at + 5 : at + 7], data[at + 7 : at + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        else:
            at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    """Return the size of a WebP picture of any of the three kinds (RFC 9649, 2.5 to 2.7)."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return None
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L" and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        width, height = int.from_bytes(body[6:8], "little"), int.from_bytes(body[8:10], "little")
        return width & 0x3FFF, height & 0x3FFF
    return None
