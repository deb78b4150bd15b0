"""The server's numbers in Prometheus' text format: requests by route and status, and what the host
tells of itself."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.server.guard import Usage

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = frozenset(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"))


class Metrics:
    """Counted since the process began. Of the event loop's thread."""

    def __init__(self) -> None:
        self._began = time.time()
        self._requests: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, tuple[int, float]] = {}
        self.events = 0

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request was answered. `route` is the template, so that no client can make names."""
        key = (method if method in _METHODS else "other", route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        number, total = self._seconds.get(route, (0, 0.0))
        self._seconds[route] = (number + 1, total + seconds)

    def text(self, usage: Usage, host: Mapping[str, int]) -> str:
        """All of them, `host`'s under `holdfast_{name}`: counters where the name ends in `_total`,
        else gauges."""
        lines = [
            *_family("http_requests_total", "counter", "Requests answered."),
            *(
                f'holdfast_http_requests_total{{method="{method}",route="{route}",status="{status}"}}'
                f" {number}"
                for (method, route, status), number in sorted(self._requests.items())
            ),
            *_family(
                "http_request_seconds",
                "summary",
                "How long answers took, streams until they ended.",
            ),
        ]
        for route, (number, seconds) in sorted(self._seconds.items()):
            lines.append(f'holdfast_http_request_seconds_count{{route="{route}"}} {number}')
            lines.append(f'holdfast_http_request_seconds_sum{{route="{route}"}} {seconds:.6f}')
        lines += _one(
            "http_requests_running",
            "gauge",
            "Requests being answered, streams aside.",
            usage.requests,
        )
        lines += _one(
            "http_refused_total",
            "counter",
            "Requests refused for their rate or number.",
            usage.refused,
        )
        lines += _one("streams_open", "gauge", "Event streams that are open.", usage.streams)
        lines += _one("streamed_events_total", "counter", "Events sent on streams.", self.events)
        lines += _one(
            "start_time_seconds",
            "gauge",
            "When the process began, in seconds since 1970.",
            f"{self._began:.3f}",
        )
        for name, value in sorted(host.items()):
            plain = re.sub(r"[^a-z0-9_]", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
            lines += _one(
                plain,
                "counter" if plain.endswith("_total") else "gauge",
                "Told by the host.",
                value,
            )
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, help: str) -> list[str]:
    return [f"# HELP holdfast_{name} {help}", f"# TYPE holdfast_{name} {kind}"]


def _one(name: str, kind: str, help: str, value: object) -> list[str]:
    return [*_family(name, kind, help), f"holdfast_{name} {value}"]
