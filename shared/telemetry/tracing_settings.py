"""Tracing by OpenTelemetry's standard environment variables.

Read here: OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_ENDPOINT and …_PROTOCOL, with
their …_TRACES_… forms. The SDK reads all others (sampler, headers, certificates, limits, resource).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace.export import SpanExporter

    from shared.telemetry.tracing import Tracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTERS = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Return whether the environment asks for traces: it names an exporter or an endpoint.

    Raises:
        ConfigError: the exporter is unknown.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter not in ("", "none", "otlp"):
        raise ConfigError(f"OTEL_TRACES_EXPORTER must be otlp or none, not {exporter}")
    if exporter:
        return exporter == "otlp"
    return any(environ.get(name, "").strip() for name in _ENDPOINTS)


def endpoint(environ: Mapping[str, str]) -> str:
    """Return the URL that traces are sent to."""
    named = (environ.get(name, "").strip() for name in _ENDPOINTS)
    return next(filter(None, named), "http://localhost:4317")


def open_tracer(role: str, *, instance: str, environ: Mapping[str, str]) -> Tracer | None:
    """Return a tracer according to `environ`; None if it asks for none.

    The SDK is imported only then. `role` is the service's name unless OTEL_SERVICE_NAME or
    OTEL_RESOURCE_ATTRIBUTES set another one, `instance` its id.

    Raises:
        ConfigError: the requested exporter or protocol is not available.
    """
    if not is_wanted(environ):
        return None
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from shared.telemetry.tracing import Tracer

    own = Resource.create(
        {
            "service.name": f"baton-{role}",
            "service.namespace": "baton",
            "service.instance.id": instance,
            "service.version": VERSION,
        }
    )
    provider = TracerProvider(
        resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(_exporter(environ)))
    return Tracer(provider)


def _exporter(environ: Mapping[str, str]) -> SpanExporter:
    protocol = next(filter(None, (environ.get(name, "").strip() for name in _PROTOCOLS)), "grpc")
    if protocol not in _EXPORTERS:
        raise ConfigError(f"{_PROTOCOLS[1]} must be one of {', '.join(_EXPORTERS)}, not {protocol}")
    try:
        module = importlib.import_module(_EXPORTERS[protocol])
    except ImportError as error:
        raise ConfigError(
            f"traces over {protocol} need opentelemetry-exporter-otlp-proto-"
            f"{protocol.partition('/')[0]}: {error}"
        ) from error
    exporter: SpanExporter = module.OTLPSpanExporter()
    return exporter
