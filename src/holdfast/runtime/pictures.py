"""Pictures in the form that models take: at most so many pixels and bytes. Scaling needs Pillow, if
it is installed."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any, NamedTuple

from holdfast.errors import RuntimeFault
from holdfast.image_size import pixels

# Providers scale larger pictures down themselves, and count their pixels before that.
_MAX_SIDE = 1568
# A small file can hold a picture of gigabytes, which is not unpacked.
_MAX_PIXELS = 100_000_000


class FittedPicture(NamedTuple):
    """A picture's bytes and MIME type, and a note about its size."""

    data: bytes
    kind: str
    note: str


def fitted(data: bytes, kind: str, max_bytes: int, shown: str) -> FittedPicture:
    """Return a picture with sides of at most 1,568 pixels and at most `max_bytes` bytes. Without
    Pillow a larger one is returned as it is, if its bytes fit. Raises `RuntimeFault`."""
    size = pixels(data)
    if size is None:
        raise RuntimeFault(f"{shown} is damaged: its size cannot be read.")
    about = f"{kind}, {size[0]}x{size[1]} pixels"
    if max(size) <= _MAX_SIDE and len(data) <= max_bytes:
        return FittedPicture(data, kind, about)
    if size[0] * size[1] > _MAX_PIXELS:
        raise RuntimeFault(f"{shown} has {size[0]}x{size[1]} pixels, too many to scale it down.")
    try:
        # Not a dependency of Holdfast: most agents look at no pictures.
        library: Any = import_module("PIL.Image")
    except ImportError:
        if len(data) > max_bytes:
            raise RuntimeFault(
                f"{shown} has {len(data):,} bytes; at most {max_bytes:,} can be shown, and Pillow"
                " is not installed to scale it down. Make it smaller with a command."
            ) from None
        return FittedPicture(data, kind, f"{about}; not scaled down, Pillow is not installed")
    try:
        with library.open(io.BytesIO(data)) as opened:
            picture: Any = opened.convert("RGBA" if opened.has_transparency_data else "RGB")
        picture.thumbnail((_MAX_SIDE, _MAX_SIDE))
        form = "JPEG" if kind == "image/jpeg" else "PNG"
        found = _encoded(picture, form)
        if len(found) > max_bytes:
            form, found = "JPEG", _encoded(picture.convert("RGB"), "JPEG")
    except Exception as error:  # a damaged file raises many kinds
        raise RuntimeFault(f"{shown} cannot be scaled down: {error}.") from error
    width, height = picture.size
    note = f"{about}, scaled down to {width}x{height}"
    return FittedPicture(found, f"image/{form.lower()}", note)


def _encoded(picture: Any, form: str) -> bytes:
    written = io.BytesIO()
    picture.save(written, form)
    return written.getvalue()
