"""`Telemetry`: OpenTelemetry spans and metrics of conversations, using only opentelemetry-api."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import __version__
from holdfast.content import Usage
from holdfast.errors import ConfigurationError
from holdfast.observe import names
from holdfast.observe.spans import Attributes, SpanMaker, SpanStart
from holdfast.tools.trace_headers import trace_header_source

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from holdfast.conversation.observer import Undo


class _TracedSpan(NamedTuple):
    """A span, and the context in which it is current."""

    span: Span
    context: Context
    recording: bool  # True if the span is exported or stored


class Telemetry(SpanMaker[_TracedSpan]):
    """An observer that emits OpenTelemetry spans and metrics: `Conversation(agent,
    observer=Telemetry())`.

    Spans and metrics go to the given providers; None means the program's global ones.
    `content=True` adds messages, answers, arguments and results to the spans. Thread-safe; keeps no
    data of closed conversations. Needs `pip install 'holdfast[otel]'`, which is opentelemetry-api;
    the caller supplies the exporter. Raises `ConfigurationError` without that package.

    https://opentelemetry.io/docs/specs/semconv/gen-ai/; see `holdfast.observe.names` for the
    version.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        content: bool = False,
    ) -> None:
        try:
            from opentelemetry import context, metrics, trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise ConfigurationError(
                "Telemetry needs the opentelemetry-api package: pip install 'holdfast[otel]'."
            ) from None
        for name, value, method in (
            ("tracer_provider", tracer_provider, "get_tracer"),
            ("meter_provider", meter_provider, "get_meter"),
        ):
            if value is not None and not callable(getattr(value, method, None)):
                raise ConfigurationError(
                    f"Telemetry: {name} takes an OpenTelemetry provider or None, not {value!r}."
                )
        self.content = bool(content)
        self._trace = trace
        self._context = context
        self._error = trace.StatusCode.ERROR
        self._kinds = (trace.SpanKind.INTERNAL, trace.SpanKind.CLIENT)
        # The W3C propagator is used instead of the program's global one, which the caller did not
        # pass.
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("holdfast", __version__, tracer_provider, names.SCHEMA)
        meter = metrics.get_meter("holdfast", __version__, meter_provider, names.SCHEMA)
        self._tokens, self._durations = [
            meter.create_histogram(name, unit, about, explicit_bucket_boundaries_advisory=buckets)
            for name, unit, about, buckets in names.HISTOGRAMS
        ]
        self._costs = meter.create_counter(
            names.CLIENT_COST, "USD", "Cost of model calls: as providers state it, or list prices."
        )
        self._parts = meter.create_counter(
            names.TOKEN_PARTS, "{token}", "Tokens of one kind, counted in the input or output too."
        )
        self._server_calls = meter.create_counter(
            names.SERVER_CALLS, "{call}", "Tool calls that the model's provider ran itself."
        )

    def headers(self) -> Mapping[str, str]:
        """Return the current span as `traceparent` and `tracestate`."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier

    def served(self, method: str, headers: Mapping[str, str]) -> Callable[[str, int], None]:
        """Begin a span below the client's, current until the request is served. See
        `Observer.served`."""
        above = self._propagator.extract(headers, self._context.Context())
        span = self._tracer.start_span(
            method, above, self._trace.SpanKind.SERVER, {names.HTTP_METHOD: method}
        )
        undo = self.enter(self._traced(span, above))

        def done(route: str, status: int) -> None:
            undo()
            if span.is_recording():
                span.update_name(f"{method} {route}")
                span.set_attributes({names.HTTP_ROUTE: route, names.HTTP_STATUS: status})
                if status >= 500:
                    span.set_attribute(names.ERROR_TYPE, str(status))
                    span.set_status(self._error)
            span.end()

        return done

    def start(self, opening: SpanStart[_TracedSpan]) -> _TracedSpan:
        link = opening.link
        links = None if link is None else [self._trace.Link(link.span.get_span_context())]
        time_ns = int(time.time_ns() - opening.ago * 1e9) if opening.ago else None
        above = None if opening.parent is None else opening.parent.context
        kind = self._kinds[opening.client]
        span = self._tracer.start_span(
            opening.name, above, kind, opening.attributes, links, time_ns
        )
        return self._traced(span, above)

    def _traced(self, span: Span, above: Context | None) -> _TracedSpan:
        return _TracedSpan(span, self._trace.set_span_in_context(span, above), span.is_recording())

    def note(self, span: _TracedSpan, name: str, attributes: Attributes) -> None:
        if span.recording:
            span.span.add_event(name, attributes)

    def end(
        self, span: _TracedSpan, attributes: Attributes, error: str = "", message: str = ""
    ) -> None:
        if span.recording:
            otel_span = span.span
            if error:
                attributes[names.ERROR_TYPE] = error
                otel_span.set_status(self._error, message or None)
            if attributes:
                otel_span.set_attributes(attributes)
            otel_span.end()

    def enter(self, span: _TracedSpan) -> Undo:
        token = self._context.attach(span.context)
        before = trace_header_source.set(self.headers)

        def undo() -> None:
            trace_header_source.reset(before)
            self._context.detach(token)

        return undo

    def measure(
        self,
        seconds: float,
        usage: Usage,
        cost: float | None,
        labels: Attributes,
        server_tools: Sequence[str] = (),
    ) -> None:
        self._durations.record(seconds, labels)
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if count:
                self._tokens.record(count, {**labels, names.TOKEN_TYPE: kind})
        for field, _, kind in names.USAGE_ATTRIBUTES:
            if kind and (count := getattr(usage, field)) > 0:
                self._parts.add(count, {**labels, names.TOKEN_KIND: kind})
        for name in server_tools:
            self._server_calls.add(1, {**labels, names.TOOL_NAME: name})
        if cost:
            self._costs.add(cost, labels)

    def __repr__(self) -> str:
        return f"Telemetry(content={self.content})"

    def __reduce__(self) -> Any:
        raise TypeError(
            "Telemetry cannot be pickled, because it holds providers of this process. Create"
            " another one in the other process."
        )
