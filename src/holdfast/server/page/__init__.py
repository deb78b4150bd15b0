"""The web page that the server offers at `/`. Its files hold no private data and need no key;
the page calls the API with a key."""

from __future__ import annotations

import gzip
import re
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI, Request

_TYPES = MappingProxyType({".html": "text/html", ".css": "text/css", ".js": "text/javascript"})

# The page loads only its own files and allows no frames and no forms to other hosts.
# `require-trusted-types-for` prevents that text becomes HTML.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
    " data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for"
    " 'script'; trusted-types 'none'"
)


# A comment on lines of its own.
_COMMENT = re.compile(rb"^[\t ]*(?://[^\n]*|/\*\*(?s:.*?)\*/[\t ]*)$", re.MULTILINE)
_INDENTATION = re.compile(rb"^\t+", re.MULTILINE)


class File:
    """A file in the form in which it is sent."""

    def __init__(self, body: bytes, media_type: str) -> None:
        self.body = body
        self.media_type = media_type
        self.etag = sha256(body).hexdigest()[:20]

    @cached_property
    def compressed(self) -> bytes:
        """The body compressed with gzip, made with the first request that accepts it."""
        return gzip.compress(self.body, mtime=0)


def files() -> Mapping[str, File]:
    """Return the page's files by their paths on the server. Scripts and styles are sent without
    their comments and indentation, and their line numbers stay the same. Files of `vendor`, which
    `tests/vendor.py` makes, are sent unchanged."""
    folder = Path(__file__).parent
    by_path: dict[str, File] = {}
    for path in sorted([*folder.iterdir(), *(folder / "vendor").iterdir()]):
        if (media_type := _TYPES.get(path.suffix)) is not None:
            body = path.read_bytes()
            if path.suffix in (".js", ".css") and path.parent == folder:
                body = _COMMENT.sub(lambda match: b"\n" * match[0].count(b"\n"), body)
                body = _INDENTATION.sub(b"", body)
            name = path.relative_to(folder).as_posix()
            place = "/" if name == "index.html" else f"/page/{name}"
            by_path[place] = File(body, f"{media_type}; charset=utf-8")
    return MappingProxyType(by_path)


def add(app: FastAPI, files: Mapping[str, File]) -> None:
    """Add the routes of the page's files. The OpenAPI document does not list them."""
    for path, file in files.items():
        app.add_route(path, _endpoint_of(file), methods=["GET", "HEAD"], include_in_schema=False)


def _endpoint_of(file: File) -> Any:
    # `no-cache` makes the browser revalidate each time, so that an upgraded server's page appears
    # at once. An unchanged file is answered with 304.
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Vary": "Accept-Encoding",
    }

    async def send(request: Request) -> Response:
        packed = "gzip" in request.headers.get("accept-encoding", "")
        # Each encoding has a tag of its own (RFC 9110, section 8.8.3.3).
        response_headers = {**headers, "ETag": f'"{file.etag}{"-gzip" if packed else ""}"'}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=response_headers)
        if packed:
            response_headers["Content-Encoding"] = "gzip"
        body = file.compressed if packed else file.body
        return Response(body, media_type=file.media_type, headers=response_headers)

    return send
