"""Trace headers for outgoing requests: the telemetry sets their source, HTTP clients read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar

# Returns the HTTP headers (such as traceparent) for requests made in this context. None: no trace
# is active.
trace_header_source: ContextVar[Callable[[], Mapping[str, str]] | None] = ContextVar(
    "holdfast_carried", default=None
)


def trace_headers() -> Mapping[str, str]:
    """Return the trace headers for a request made now; empty without an active trace."""
    headers = trace_header_source.get()
    return {} if headers is None else headers()
