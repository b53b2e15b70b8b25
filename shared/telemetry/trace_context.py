"""The caller's trace context of a request (W3C Trace Context)."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The headers of a trace context; gRPC metadata has the same keys.
HEADERS = frozenset({"traceparent", "tracestate"})
_RAW_HEADERS = frozenset(name.encode() for name in HEADERS)


@dataclass(slots=True)
class Incoming:
    """A request at its arrival. Shared by all tasks that work on the request."""

    #: W3C headers; empty if the caller has no trace.
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The operation's name in the GenAI conventions.
    operation: str = "chat"
    #: Id of the trace, for log lines. Empty before the trace begins.
    trace_id: str = ""


#: Set on arrival in a router that traces, for the code that serves the request. Not passed as an
#: argument, because no code in between uses it.
INCOMING: ContextVar[Incoming | None] = ContextVar("baton_incoming_trace", default=None)


def headers_in(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the trace context in HTTP headers; empty if there is none."""
    return {name.decode(): value.decode("latin-1") for name, value in pairs if name in _RAW_HEADERS}


def metadata_in(pairs: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """Return the trace context in a gRPC call's metadata; empty if there is none."""
    return {name: value for name, value in pairs if name in HEADERS and isinstance(value, str)}
