"""The constant parts of all requests to one model, and the reader of a streamed answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import BadResponse, LLMConnectionError, LLMTimeout, StreamInterrupted
from holdfast.llm.address import Address
from holdfast.llm.completion import Completion, OnDelta
from holdfast.llm.http import Exchange, HTTPPool, Transport, header_text
from holdfast.llm.wires import Wire, wire_of

# After a complete answer, the server has this many seconds to count tokens and end the stream.
AFTER_FINISH = 10.0


class Line:
    """The parts that all requests of one LLM share: wire, connection pool, path and header
    lines."""

    __slots__ = ("headers", "key", "path", "pool", "url", "wire")

    wire: Wire
    pool: Transport

    def __init__(self, address: Address, parameters: dict[str, Any], given: dict[str, Any]) -> None:
        base_url, model = address.base_url, address.model
        self.wire = wire_of(parameters)
        self.key = f"{self.wire.name} {model}"
        parts = urlsplit(base_url)
        path, _, query = self.wire.path(model, given["stream"]).partition("?")
        query = "&".join(part for part in (query, parts.query) if part)
        self.path = f"{parts.path}{path}?{query}" if query else parts.path + path
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path}{path}"
        own = self.wire.headers(given["api_key"])
        # Azure takes keys in a header of its own. Entra tokens (JWTs, which begin with "eyJ") stay
        # Bearer tokens.
        if (
            "Authorization" in own
            and (parts.hostname or "").endswith(".openai.azure.com")
            and not given["api_key"].startswith("eyJ")
        ):
            del own["Authorization"]
            own["api-key"] = given["api_key"]
        headers: dict[str, str] = {"User-Agent": "holdfast", **own, **(given["headers"] or {})}
        # Of two names that differ only in case the later one wins: a caller's Authorization
        # replaces Holdfast's.
        self.headers = header_text({name.lower(): value for name, value in headers.items()})
        self.pool = HTTPPool(
            base_url,
            timeout=(given["connect_timeout"], given["timeout"]),
            proxy=given["proxy"],
            ssl_context=given["ssl_context"],
        )


def read_stream(wire: Wire, response: Exchange, told: OnDelta) -> Completion:
    """Read a streamed answer to its end.

    After `parser.closed` becomes True, only token counts can follow. The deadline is then
    shortened, and failures are ignored. Until then the stream must end by itself under the
    normal limits. A server may mark every piece as final, so an interrupted stream is not an
    answer even if it is `finished`. Content after a finish reopens the answer.
    """
    parser = wire.stream()
    hurried = False
    try:
        for chunk in response:
            try:
                parser.feed(chunk, told)
            except BadResponse:
                if not parser.closed:
                    raise
                break
            if parser.done:
                response.hurry(0.1)  # reading the end of the body makes the connection reusable
            elif parser.closed is not hurried:
                hurried = parser.closed
                response.hurry(AFTER_FINISH if hurried else None)
    except (LLMConnectionError, LLMTimeout) as error:
        if not (parser.closed or parser.done):
            if isinstance(error, LLMTimeout):
                raise
            raise StreamInterrupted(
                f"The stream broke off before the answer was complete: {error}"
            ) from error
    return parser.finish()
