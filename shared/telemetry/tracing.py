"""Spans of requests, exported by OpenTelemetry.

Off unless its standard environment variables turn it on (`telemetry/tracing_settings.py`); code
that could make a span holds a `Tracer | None`, and does nothing for None.

All times are measured with the monotonic clock, and so are spans' times. They are converted to the
wall clock by one offset per trace and process: a step of the clock changes no duration.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer as OtelTracer

    #: Types of an attribute's value.
    Value = str | bool | int | float | Sequence[str]

#: Longest wait for the export of the last spans at the end of a process.
CLOSE_S = 3.0
CLOSING_THREAD = "tracer-close"

_propagator = TraceContextTextMapPropagator()


class Span:
    """One span, and the means to make children of it. End it exactly once."""

    def __init__(self, tracer: OtelTracer, span: OtelSpan, offset_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._offset_ns = offset_ns
        self._context: Context = set_span_in_context(span)

    @property
    def trace_id(self) -> str:
        """Trace id: 32 hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def headers(self) -> dict[str, str]:
        """W3C headers for another process that continues under this span."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, self._context)
        return carrier

    def child(
        self,
        name: str,
        *,
        began_s: float | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Value] | None = None,
    ) -> Span:
        """Start a span under this one."""
        span = self._tracer.start_span(
            name,
            context=self._context,
            kind=kind,
            attributes=attributes,
            start_time=self._ns(time.monotonic() if began_s is None else began_s),
        )
        return Span(self._tracer, span, self._offset_ns)

    def call(self, name: str, attributes: Mapping[str, Value] | None = None) -> Span:
        """Start a span under this one for a call to another process, which continues under it."""
        return self.child(name, kind=SpanKind.CLIENT, attributes=attributes)

    def stage(
        self,
        name: str,
        began_s: float,
        ended_s: float,
        attributes: Mapping[str, Value] | None = None,
    ) -> None:
        """Add an ended span under this one."""
        self.child(name, began_s=began_s, attributes=attributes).end(max(began_s, ended_s))

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Set attributes of the span."""
        self._span.set_attributes(attributes)

    def event(self, name: str, at_s: float) -> None:
        """Add an event to the span; `at_s` by the monotonic clock."""
        self._span.add_event(name, timestamp=self._ns(at_s))

    def fail(self, error: BaseException) -> None:
        """Mark the span as failed with `error`. Does not end it."""
        self._span.set_attribute("error.type", type(error).__name__)
        self._span.set_status(StatusCode.ERROR, str(error))

    def end(self, at_s: float | None = None) -> None:
        """End the span, now or at `at_s` by the monotonic clock."""
        self._span.end(self._ns(time.monotonic() if at_s is None else at_s))

    def _ns(self, at_s: float) -> int:
        return self._offset_ns + round(at_s * 1e9)


class Tracer:
    """Begins this process's part of traces."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer: OtelTracer = provider.get_tracer("baton")

    def start(
        self,
        name: str,
        *,
        headers: Mapping[str, str],
        began_s: float | None = None,
        attributes: Mapping[str, Value] | None = None,
    ) -> Span:
        """Begin the span of serving a call, under the trace context in `headers`, if any."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        at_s = time.monotonic() if began_s is None else began_s
        span = self._tracer.start_span(
            name,
            context=_propagator.extract(headers) if headers else None,
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=offset_ns + round(at_s * 1e9),
        )
        return Span(self._tracer, span, offset_ns)

    async def close(self) -> None:
        """Export the remaining spans, within a time limit."""
        # Not in the loop's own threads: the loop's end waits for those, however long a collector
        # hangs.
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def close() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the wait has ended, and the loop is closed
                loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=close, name=CLOSING_THREAD, daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await closed.wait()
