"""The constant parts of all requests to one model, and the reader of a streamed answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import LLMConnectionError, LLMTimeout, StreamInterrupted
from holdfast.llm.address import Address
from holdfast.llm.completion import Completion, OnDelta
from holdfast.llm.http import HttpExchange, HTTPPool, Transport, header_text
from holdfast.llm.wires import UPLOAD_HEADERS, answer_reader
from holdfast.llm.wires.protocol import TEXT_SUFFIX, Wire
from holdfast.llm.wires.streams import feed_piece

# After a complete answer, the server has this many seconds to count tokens and end the stream.
AFTER_FINISH_SECONDS = 10.0


class ModelEndpoint:
    """The parts that all requests of one LLM share: wire, connection pool, path and header
    lines."""

    __slots__ = (
        *("_base", "headers", "key", "path", "pool", "upload_headers", "url"),
        *("wire", "wire_without_tools"),
    )

    wire: Wire
    wire_without_tools: Wire  # reads the answer to a request without tools
    pool: Transport

    def __init__(self, address: Address, wire: Wire, arguments: dict[str, Any]) -> None:
        base_url, model = address.base_url, address.model
        self.wire = wire
        self.wire_without_tools = answer_reader(wire, tools=False)
        self.key = f"{self.wire.name} {model}"
        self._base = parts = urlsplit(base_url)
        self.path, self.url = self.at(self.wire.path(model, arguments["stream"]))
        wire_headers = self.wire.headers(arguments["api_key"])
        # Azure takes keys in a header of its own. Entra tokens (JWTs, which begin with "eyJ") stay
        # Bearer tokens.
        if (
            "Authorization" in wire_headers
            and (parts.hostname or "").endswith(".openai.azure.com")
            and not arguments["api_key"].startswith("eyJ")
        ):
            del wire_headers["Authorization"]
            wire_headers["api-key"] = arguments["api_key"]
        headers: dict[str, str] = {
            "User-Agent": "holdfast",
            **wire_headers,
            **(arguments["headers"] or {}),
        }
        # Of two names that differ only in case the later one wins: a caller's Authorization
        # replaces Holdfast's.
        headers = {name.lower(): value for name, value in headers.items()}
        self.headers = header_text(headers)
        # The headers of a request that refers to a file at the provider. A header that the caller
        # gives is a list, which is extended.
        for name, value in UPLOAD_HEADERS.get(self.wire.name.removesuffix(TEXT_SUFFIX), {}).items():
            current = headers.get(name, "")
            if value not in current:
                headers[name] = f"{current},{value}" if current else value
        self.upload_headers = header_text(headers)
        self.pool = HTTPPool(
            base_url,
            timeout=(arguments["connect_timeout"], arguments["timeout"]),
            proxy=arguments["proxy"],
            ssl_context=arguments["ssl_context"],
        )

    def at(self, path: str) -> tuple[str, str]:
        """Return a wire's path from the server's root, with the query of both, and its URL without
        a query."""
        base = self._base
        path, _, query = path.partition("?")
        query = "&".join(part for part in (query, base.query) if part)
        full = base.path + path
        return f"{full}?{query}" if query else full, f"{base.scheme}://{base.netloc}{full}"


def read_stream(wire: Wire, response: HttpExchange, on_delta: OnDelta) -> Completion:
    """Read a streamed answer to its end.

    After `parser.closed` becomes True, only token counts can follow: the deadline is shortened, and
    failures are ignored. Until then the stream must end by itself, because a server may mark every
    piece as final. Content after a finish reopens the answer.
    """
    parser = wire.stream()
    shortened = False
    try:
        for chunk in response:
            if not feed_piece(parser, chunk, on_delta):
                break
            if parser.done:
                response.finish_within(0.1)  # at the end of the body the connection is reusable
            elif parser.closed is not shortened:
                shortened = parser.closed
                response.finish_within(AFTER_FINISH_SECONDS if shortened else None)
    except (LLMConnectionError, LLMTimeout) as error:
        if not (parser.closed or parser.done):
            parser.raise_reported()
            if isinstance(error, LLMTimeout):
                raise
            raise StreamInterrupted(
                f"The stream broke off before the answer was complete: {error}"
            ) from error
    return parser.finish()
