"""Recorded exchanges with a provider."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import ConfigurationError


class RecordedResponse(msgspec.Struct, frozen=True):
    """A recorded response. `body` is a JSON value, or a str with the exact text of a stream."""

    body: Any
    status: int = 200
    headers: dict[str, str] = {}

    @property
    def is_stream(self) -> bool:
        """True if the response is a stream."""
        return isinstance(self.body, str) and self.status == 200

    @property
    def data(self) -> bytes:
        """The bytes of the body."""
        body = self.body
        return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


class RecordedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded request and its response.

    - `request`: the recorded request, with `path` and `body`.
    - `streamed`: the same answer as a stream, if both forms were recorded.
    - `expected`: attributes of the `Completion` with their values as JSON, such as
      `{"text": "Hi.", "usage": {"input_tokens": 5}}`. Of an object, the kit compares the keys that
      are given. `{"error": {"type": "RateLimited", "retry_after": 3}}` expects an error of that
      class with these attributes. None accepts every legal answer.
    - `carried`: values that the next request must contain: a text, or an object whose keys and
      values a part of the request has.
    - `swaps`: pairs of positions of events whose order does not matter.
    - `following`: the body of the next request of the same recording. The provider accepted it, so
      the wire's next request must contain the long texts that it took from the answer.
    """

    name: str
    response: RecordedResponse
    request: dict[str, Any] = {}
    streamed: RecordedResponse | None = None
    expected: dict[str, Any] | None = None
    carried: tuple[Any, ...] = ()
    swaps: tuple[tuple[int, int], ...] = ()
    following: Any = None

    @property
    def responses(self) -> Sequence[RecordedResponse]:
        """Every recorded form of the answer."""
        return [self.response] if self.streamed is None else [self.response, self.streamed]

    def __str__(self) -> str:
        return self.name


class _Interaction(RecordedExchange, frozen=True, kw_only=True):
    name: str = ""  # its number


class _Recording(msgspec.Struct):
    interactions: list[_Interaction]


def load(path: str | os.PathLike[str]) -> list[RecordedExchange]:
    """Return the exchanges of a JSON file, or of all `*.json` files of a folder by name.

    A file contains `{"interactions": [{"request": {"path", "body"}, "response": {"status",
    "headers", "body"}}]}`. An interaction may also have the other fields of `RecordedExchange`.
    Raises `ConfigurationError` for a folder without recordings and for a file in another form,
    `OSError` for one that cannot be read.
    """
    place = Path(path)
    files = sorted(place.glob("*.json")) if place.is_dir() else [place]
    if not files:
        raise ConfigurationError(f"{place} has no recording: no file *.json.")
    return [exchange for file in files for exchange in _read(file.stem, file.read_bytes(), file)]


def shipped(wire_name: str) -> list[RecordedExchange]:
    """Return the recordings that Holdfast ships for one of its own wires. Raises
    `ConfigurationError` for any other name."""
    file = files("holdfast.testing.wires").joinpath(f"recordings/{wire_name}.json")
    if not file.is_file():
        raise ConfigurationError(f"Holdfast comes with no recording of a wire {wire_name!r}.")
    return _read(wire_name, file.read_bytes(), file)


def _read(stem: str, data: bytes, place: object) -> list[RecordedExchange]:
    try:
        interactions = msgspec.json.decode(data, type=_Recording).interactions
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{place} is not a recording: {error}.") from None
    bodies = [*(one.request.get("body") for one in interactions), None]
    exchanges: list[RecordedExchange] = []
    for number, one in enumerate(interactions):
        fields = msgspec.structs.asdict(one)
        fields |= {"name": f"{stem}-{one.name or number}", "following": bodies[number + 1]}
        exchanges.append(RecordedExchange(**fields))
    return exchanges
