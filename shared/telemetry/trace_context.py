"""What a caller said about the trace that its request belongs to (W3C Trace Context)."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The headers of a trace context; the same words are keys of gRPC metadata.
HEADERS = frozenset({"traceparent", "tracestate"})
_RAW_HEADERS = frozenset(name.encode() for name in HEADERS)


@dataclass(slots=True)
class Incoming:
    """A request as its door saw it. Shared by all tasks that work on the request."""

    #: W3C headers; empty if the caller has no trace.
    headers: Mapping[str, str] = field(default_factory=dict)
    #: What is asked for, in the words of the GenAI conventions.
    operation: str = "chat"
    #: Of the trace that it became part of; log lines have it. Empty until there is one.
    trace_id: str = ""


#: Set by the doors of a router that traces, for the code that serves the request. It is not
#: passed along because nothing in between has to know of it.
INCOMING: ContextVar[Incoming | None] = ContextVar("baton_incoming_trace", default=None)


def headers_in(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The trace context among HTTP headers, if there is one."""
    return {name.decode(): value.decode("latin-1") for name, value in pairs if name in _RAW_HEADERS}


def metadata_in(pairs: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """The trace context among a gRPC call's metadata, if there is one."""
    return {name: value for name, value in pairs if name in HEADERS and isinstance(value, str)}
