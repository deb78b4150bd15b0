"""The server's metrics in Prometheus' text format: requests by route and status, and the host's
numbers."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.server.guard import QuotaUsage

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_RUNNING = "Requests being answered, without streams."
_STARTED = "Start of the process, in seconds since 1970."
_METHODS = frozenset(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"))


class Metrics:
    """The counters since the process started. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._began = time.time()
        self._requests: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, tuple[int, float]] = {}
        self.events = 0

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer. `route` is a template, so that clients cannot create metric names."""
        key = (method if method in _METHODS else "other", route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        number, total = self._seconds.get(route, (0, 0.0))
        self._seconds[route] = (number + 1, total + seconds)

    def text(self, usage: QuotaUsage, host: Mapping[str, int]) -> str:
        """Return all metrics as text. Metrics of `host` are named `holdfast_{name}`; names that end
        in `_total` are counters, all others gauges."""
        lines = _family("http_requests_total", "counter", "Requests answered.")
        for (method, route, status), number in sorted(self._requests.items()):
            labels = f'method="{method}",route="{route}",status="{status}"'
            lines.append(f"holdfast_http_requests_total{{{labels}}} {number}")
        help = "Duration of answers; of streams until their end."
        lines += _family("http_request_seconds", "summary", help)
        for route, (number, seconds) in sorted(self._seconds.items()):
            lines.append(f'holdfast_http_request_seconds_count{{route="{route}"}} {number}')
            lines.append(f'holdfast_http_request_seconds_sum{{route="{route}"}} {seconds:.6f}')
        own: list[tuple[str, str, object]] = [
            ("http_requests_running", _RUNNING, usage.requests),
            ("http_refused_total", "Requests refused for exceeding a key's quota.", usage.refused),
            ("streams_open", "Open event streams.", usage.streams),
            ("streamed_events_total", "Events sent on streams.", self.events),
            ("start_time_seconds", _STARTED, f"{self._began:.3f}"),
        ]
        for name, value in sorted(host.items()):
            plain = re.sub(r"[^a-z0-9_]", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
            own.append((plain, "Reported by the host.", value))
        for name, help, value in own:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [*_family(name, kind, help), f"holdfast_{name} {value}"]
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, help: str) -> list[str]:
    return [f"# HELP holdfast_{name} {help}", f"# TYPE holdfast_{name} {kind}"]
