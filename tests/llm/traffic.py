"""Recorded traffic of providers: its files, and its answers in the form of a `ModelServer`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.testing import wires
from holdfast.testing.wires import RecordedResponse
from holdfast.testing.wires.reading import cut
from tests.model_server import Stream
from tests.paths import SHARED

RECORDED = SHARED / "provider_traffic"
# Bytes per piece of a stream on the socket. The conformance kit cuts the same streams at other
# sizes, with every kind of line end (`test_a_wire_passes_with_real_traffic`).
PIECE_BYTES = 7


def files(wire_name: str) -> list[Path]:
    """Return the recordings of one wire."""
    return sorted((RECORDED / wire_name).glob("*.json"))


def features(path: Path) -> list[str]:
    """Return the features that a recording shows."""
    return json.loads(path.read_text())["features"]


def exchanges(path: Path) -> list[tuple[dict[str, Any], RecordedResponse]]:
    """Return the bodies of the requests of a recording, each with its response."""
    return [(one.request["body"], one.response) for one in wires.load(path)]


def serve(response: RecordedResponse) -> Any:
    """Return a response in the form of a `ModelServer`."""
    if response.is_stream:
        return Stream(cut(response.data, PIECE_BYTES))
    return (response.status, response.headers, response.body)
