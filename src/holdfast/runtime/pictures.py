"""Pictures in the form that models take: at most so many pixels and bytes. Scaling needs Pillow, if
it is installed."""

from __future__ import annotations

import io
import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.content import ImageContent
from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.image_size import pixels

# Providers scale larger pictures down themselves, and count their pixels before that.
_MAX_SIDE = 1568
MAX_PICTURE_BYTES = 5_000_000  # Anthropic's limit, the lowest of the known ones
_MAX_FILE_BYTES = 100_000_000
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_log = logging.getLogger("holdfast")
# A small file can hold a picture of gigabytes, which is not unpacked.
_MAX_PIXELS = 100_000_000


class FittedPicture(NamedTuple):
    """A picture's bytes and MIME type, and a note about its size."""

    data: bytes
    kind: str
    note: str


def fitted(data: bytes, kind: str, max_bytes: int, label: str) -> FittedPicture:
    """Return a picture with sides of at most 1,568 pixels and at most `max_bytes` bytes. Without
    Pillow a larger picture is returned unchanged, if its bytes fit. Raises `RuntimeFault`."""
    size = pixels(data)
    if size is None:
        raise RuntimeFault(f"{label} is damaged: its size cannot be read.")
    about = f"{kind}, {size[0]}x{size[1]} pixels"
    if max(size) <= _MAX_SIDE and len(data) <= max_bytes:
        return FittedPicture(data, kind, about)
    if size[0] * size[1] > _MAX_PIXELS:
        raise RuntimeFault(f"{label} has {size[0]}x{size[1]} pixels, too many to scale it down.")
    try:
        # Not a dependency of Holdfast: most agents look at no pictures.
        library: Any = import_module("PIL.Image")
    except ImportError:
        if len(data) > max_bytes:
            raise RuntimeFault(
                f"{label} has {len(data):,} bytes; at most {max_bytes:,} can be shown, and Pillow"
                " is not installed to scale it down. Make it smaller with a command."
            ) from None
        return FittedPicture(data, kind, f"{about}; not scaled down, Pillow is not installed")
    try:
        with library.open(io.BytesIO(data)) as image:
            picture: Any = image.convert("RGBA" if image.has_transparency_data else "RGB")
        picture.thumbnail((_MAX_SIDE, _MAX_SIDE))
        form = "JPEG" if kind == "image/jpeg" else "PNG"
        content = _encode(picture, form)
        if len(content) > max_bytes:
            form, content = "JPEG", _encode(picture.convert("RGB"), "JPEG")
    except Exception as error:  # a damaged file raises many kinds
        raise RuntimeFault(f"{label} cannot be scaled down: {error}.") from error
    width, height = picture.size
    note = f"{about}, scaled down to {width}x{height}"
    return FittedPicture(content, f"image/{form.lower()}", note)


def image_type(data: bytes) -> str | None:
    """Return the MIME type of an image that models accept by its first bytes, or None."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _IMAGES.items() if data.startswith(start)), None)


def load_picture(
    path: str | os.PathLike[str], *, max_bytes: int = MAX_PICTURE_BYTES
) -> ImageContent:
    """Return the picture in a file for a message, scaled down for models: sides of at most 1,568
    pixels and at most `max_bytes` bytes.

    Scaling needs Pillow (`pip install 'holdfast[pictures]'`). Without it a larger picture whose
    bytes fit is returned unchanged, with a warning in the log. Raises `ConfigurationError` if the
    file cannot be read. Raises `RuntimeFault` for a file that is not a PNG, JPEG, GIF or WebP, or
    cannot be scaled down.
    """
    place = Path(path).expanduser()
    try:
        with place.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigurationError(
            f"load_picture: {str(place)!r} cannot be read: {reason}."
        ) from None
    if len(data) > _MAX_FILE_BYTES:
        raise RuntimeFault(f"{str(place)!r} has more than {_MAX_FILE_BYTES:,} bytes.")
    kind = image_type(data)
    if kind is None:
        raise RuntimeFault(f"{str(place)!r} is no PNG, JPEG, GIF or WebP picture.")
    picture = fitted(data, kind, max_bytes, repr(str(place)))
    if picture.data is data and picture.note.endswith("not installed"):
        _log.warning("%s: %s", place, picture.note)
    return ImageContent(picture.data, picture.kind)


def _encode(picture: Any, form: str) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form)
    return buffer.getvalue()
