"""Counts prefills, and traces them if a tracer is configured."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from structlog.contextvars import bind_contextvars

from services.prefill.metrics import PrefillOutcome
from shared.errors import BatonError
from shared.telemetry.trace_context import metadata_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from baton.v1 import prefill_pb2
    from services.prefill.job import PrefillJob
    from services.prefill.metrics import PrefillMetrics
    from shared.telemetry.tracing import Span, Tracer, Value


class Watched:
    """One prefill; its job is put here once there is one."""

    def __init__(self) -> None:
        self.job: PrefillJob | None = None


class PrefillWatch:
    """Observes each call of the Prefill service."""

    def __init__(self, metrics: PrefillMetrics, tracer: Tracer | None) -> None:
        self._metrics = metrics
        self._tracer = tracer

    @contextmanager
    def over(
        self, request: prefill_pb2.PrefillRequest, metadata: Iterable[tuple[str, str | bytes]]
    ) -> Iterator[Watched]:
        """Observe the prefill that runs in the context; log lines of this task get its ids."""
        bind_contextvars(request_id=request.request_id)
        span = None if self._tracer is None else _begin(self._tracer, request, metadata)
        watched = Watched()
        outcome = PrefillOutcome.CANCELLED
        try:
            yield watched
            outcome = PrefillOutcome.OK
        except BatonError as error:
            outcome = PrefillOutcome.REFUSED if watched.job is None else PrefillOutcome.FAILED
            if span is not None:
                span.fail(error)
            raise
        finally:
            if watched.job is not None and watched.job.is_done:
                outcome = PrefillOutcome.OK  # the caller did not wait for the optional states
            self._metrics.count(outcome)
            if watched.job is not None and outcome is PrefillOutcome.OK:
                self._metrics.succeeded(watched.job)
            if span is not None:
                _end(span, watched.job)


def _begin(
    tracer: Tracer,
    request: prefill_pb2.PrefillRequest,
    metadata: Iterable[tuple[str, str | bytes]],
) -> Span:
    attributes: dict[str, Value] = {
        "baton.request_id": request.request_id,
        "gen_ai.usage.input_tokens": len(request.token_ids),
        "baton.first_block": request.first_block,
    }
    span = tracer.start("prefill", headers=metadata_in(metadata), attributes=attributes)
    bind_contextvars(trace_id=span.trace_id)
    return span


def _end(span: Span, job: PrefillJob | None) -> None:
    now_s = time.monotonic()
    if job is not None:
        span.set({"gen_ai.usage.cache_read.input_tokens": job.num_cached_tokens})
        for name, began_s, ended_s in job.stages(now_s):
            span.stage(f"prefill.{name}", began_s, ended_s)
    span.end(now_s)
