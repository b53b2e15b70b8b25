"""The decode worker's part of a request's trace."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from structlog.contextvars import bind_contextvars

from shared.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.v1 import decode_pb2
    from services.decode.account import Account
    from services.decode.prefill_attempt import HandOffReport
    from shared.telemetry.tracing import Span, Tracer, Value


def begin_span(tracer: Tracer, request: decode_pb2.DecodeRequest) -> Span:
    """Start the span of one answer; later log lines of this task have its trace id."""
    span = tracer.start(
        "decode",
        headers=dict(request.trace_context),
        attributes={
            "baton.request_id": request.request_id,
            "gen_ai.usage.input_tokens": len(request.token_ids),
        },
    )
    bind_contextvars(trace_id=span.trace_id)
    return span


@contextmanager
def under(parent: Span | None, name: str, *, worker: str) -> Iterator[Span | None]:
    """Span of a call to `worker`, for the context; None without a `parent`."""
    if parent is None:
        yield None
        return
    span = parent.call(name, {"baton.worker": worker})
    try:
        yield span
    except BatonError as error:
        span.fail(error)
        raise
    finally:
        span.end()


def trace_transfer(span: Span, report: HandOffReport, opened_s: float) -> None:
    """Add a stage for a verified transfer from `opened_s` until now; none for a failed one."""
    if report.receipt is None:
        return
    attributes: dict[str, Value] = {
        "baton.connector": report.connector,
        "baton.transfer_bytes": report.receipt.num_bytes,
        "baton.transfer_exposed_ms": report.exposed_ms,
    }
    span.stage("decode.transfer", opened_s, time.monotonic(), attributes)


def trace_account(span: Span, account: Account) -> None:
    """Add the usage and the stages of an answer that has ended; the stages leave no gap."""
    usage = account.usage()
    span.set(
        {
            "baton.prefill_place": account.place.value,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        }
    )
    for name, began_s, ended_s in account.stages():
        span.stage(f"decode.{name}", began_s, ended_s)
