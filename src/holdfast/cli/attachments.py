"""Files that the user attaches to a message: by a path of this machine, or by an address that the
model's provider fetches."""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from holdfast.cli.exit_codes import UsageError
from holdfast.cli.files import path_of, unreadable
from holdfast.cli.text import clip, one_line, size
from holdfast.content import Content, FileContent, TextContent
from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.runtime.pictures import MAX_PICTURE_BYTES, fitted, image_type

# Of all files of a message. Base64 makes them a third larger; Anthropic and an agent server accept
# 32 MB in one request.
MAX_BYTES = 20_000_000
_UNKNOWN_TYPE = "application/octet-stream"
# The type before a path or an address: `image/png=shot`.
_TYPED = re.compile(r"(?P<type>[a-z]+/[\w.+-]+)=(?P<place>.+)", re.DOTALL)


def attachments(
    places: Iterable[str], option: str = "--attach", before: Iterable[FileContent] = ()
) -> tuple[FileContent, ...]:
    """Return the files at the paths and addresses that `option` names. The files `before` belong to
    the same message. Raises `UsageError`."""
    files: list[FileContent] = []
    bytes_left = MAX_BYTES - sum(len(file.data) for file in before)
    for place in places:
        files.append(_attachment(place, option, bytes_left))
        bytes_left -= len(files[-1].data)
    return tuple(files)


def split_places(text: str) -> list[str]:
    """Return the paths and addresses in a line: one unquoted path, or several in the form of a
    shell. A terminal pastes the path of a file that is dragged into it in that form too."""
    text = text.strip()
    if text and os.path.lexists(os.path.expanduser(text)):
        return [text]
    try:
        return shlex.split(text)
    except ValueError:  # a quote without an end, such as in a name
        return [text]


def message_of(text: str, files: Sequence[FileContent]) -> str | list[Content]:
    """Return a message: the files, then the text that speaks of them."""
    return [*files, TextContent(text)] if files else text


def file_line(file: FileContent) -> str:
    """Return a file in one line: `report.pdf (application/pdf, 12 KB)`."""
    parts = [file.mime_type, size(len(file.data)) if file.data else ""]
    details = ", ".join(part for part in parts if part)
    return one_line(f"{file.name or file.url}{f' ({details})' if details else ''}")


def _attachment(place: str, option: str, bytes_left: int) -> FileContent:
    what = f"{option} {clip(place, 200)!r}"
    if not place.strip():
        raise UsageError(f"{option} takes a file or an address; it was given an empty text")
    kind = ""
    if (typed := _TYPED.fullmatch(place)) is not None and not os.path.lexists(place):
        kind, place = typed["type"], typed["place"]
    scheme, separator, rest = place.partition("://")
    if separator and scheme.lower() == "file":
        place = _local_path(what, rest)
    elif separator and scheme.isalnum():
        if not rest.strip("/"):
            raise UsageError(f"{what} is not a complete address")
        try:
            place.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{what} is not UTF-8") from None
        try:
            return FileContent(url=place, mime_type=kind)
        except ConfigurationError as error:
            raise UsageError(f"{what}: {error}") from error
    path = path_of(place)
    with unreadable(what):
        info = path.stat()
        if stat.S_ISDIR(info.st_mode):
            raise UsageError(f"{what} is a folder; name the files in it that you mean")
        if not (stat.S_ISREG(info.st_mode) or stat.S_ISFIFO(info.st_mode)):
            raise UsageError(f"{what} is a device or a socket, not a file")
        if info.st_size > bytes_left:
            raise _too_large(what, size(info.st_size), bytes_left)
        try:
            file = FileContent.from_path(path, kind, max_bytes=max(bytes_left, 0))
        except ConfigurationError:
            raise UsageError(f"{what} is empty") from None
        except OSError as error:
            if error.errno == errno.EFBIG:  # a pipe says its size only here
                raise _too_large(what, f"more than {size(bytes_left)}", bytes_left) from None
            raise
    if file.mime_type == _UNKNOWN_TYPE:
        raise UsageError(
            f"{what}: its type is unknown, and it is not text. Say the type, such as"
            f" {option} {shlex.quote(f'image/png={place}')}"
        )
    return _scaled(what, file)


def _scaled(what: str, file: FileContent) -> FileContent:
    """Return a picture in the size that models take, and another file unchanged."""
    kind = image_type(file.data)
    if kind is None or not file.mime_type.startswith("image/"):
        return file
    try:
        picture = fitted(file.data, kind, MAX_PICTURE_BYTES, what)
    except RuntimeFault as error:
        raise UsageError(str(error).removesuffix(".")) from error
    return (
        file
        if picture.data is file.data
        else FileContent(picture.data, picture.kind, name=file.name)
    )


def _local_path(what: str, rest: str) -> str:
    """Return the path of a `file:` address, which some desktops paste for a dragged file."""
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise UsageError(f"{what} is on another machine; give a path of this one")
    return unquote(f"/{path}")


def _too_large(what: str, count: str, bytes_left: int) -> UsageError:
    others = "" if bytes_left == MAX_BYTES else f" and {size(bytes_left)} are left"
    return UsageError(
        f"{what} has {count}; all files of a message may have {size(MAX_BYTES)}{others}."
        " Providers fetch larger ones themselves from an address: give https://..."
    )
