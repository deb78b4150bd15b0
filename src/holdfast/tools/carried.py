"""What requests to other services carry of the trace that they belong to: set by whoever observes a
call, read by clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar

# HTTP headers by name, such as traceparent, for requests that are made in this context; None:
# nobody traces.
carried: ContextVar[Callable[[], Mapping[str, str]] | None] = ContextVar(
    "holdfast_carried", default=None
)


def trace_headers() -> Mapping[str, str]:
    """What a request that is made now is to carry; nothing where nobody traces."""
    found = carried.get()
    return {} if found is None else found()
