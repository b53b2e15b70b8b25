"""A collector of traces: OTLP's service over real gRPC, keeping what it is sent."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.proto.collector.trace.v1 import (
    trace_service_pb2,
    trace_service_pb2_grpc,
)

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class ExportedSpan:
    """One span as it arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    began_s: float
    ended_s: float
    attributes: dict[str, Any]
    events: tuple[str, ...]
    is_error: bool


class OtlpCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens on a port of its own until `stop`."""

    def __init__(self) -> None:
        self._spans: list[ExportedSpan] = []
        self._news = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def Export(  # noqa: N802 the name in the contract
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Keep all of it."""
        with self._news:
            for resource in request.resource_spans:
                service = _values(resource.resource.attributes)["service.name"]
                for scope in resource.scope_spans:
                    self._spans += [_span(service, span) for span in scope.spans]
            self._news.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def trace(self, trace_id: str) -> list[ExportedSpan]:
        """What is known of a trace so far, in the order in which its spans began."""
        with self._news:
            found = [span for span in self._spans if span.trace_id == trace_id]
        return sorted(found, key=lambda span: span.began_s)

    def wait_for(self, trace_id: str, *names: str) -> list[ExportedSpan]:
        """The trace, once it has a span of each name."""
        deadline_s = time.monotonic() + WAIT_S
        while not {span.name for span in self.trace(trace_id)}.issuperset(names):
            with self._news:
                self._news.wait(0.1)
            found = sorted({span.name for span in self.trace(trace_id)})
            assert time.monotonic() < deadline_s, f"of {names} there are only {found}"
        return self.trace(trace_id)

    def stop(self) -> None:
        """Listen no more."""
        self._server.stop(0).wait()


def _span(service: str, span: Any) -> ExportedSpan:
    return ExportedSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        began_s=span.start_time_unix_nano / 1e9,
        ended_s=span.end_time_unix_nano / 1e9,
        attributes=_values(span.attributes),
        events=tuple(event.name for event in span.events),
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Any:
    kind = pair.value.WhichOneof("value")
    value = getattr(pair.value, str(kind))
    return [one.string_value for one in value.values] if kind == "array_value" else value
