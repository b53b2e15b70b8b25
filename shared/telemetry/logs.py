"""Structured logs: one line per event, JSON for machines or columns for people."""

from __future__ import annotations

import logging
import sys

import structlog

from shared.telemetry.trace_context import INCOMING


def configure_logs(*, service: str, level: str, as_json: bool) -> None:
    """Send structlog and the standard library's loggers to standard error in one format.

    Called once, by `__main__`. Every line names the service; lines about a request have its
    `request_id`, and its `trace_id` if there is a trace (bound by the code that begins to serve
    it).
    """

    def add_origin(
        _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        # No context variable: threads begin with an empty context.
        event["service"] = service
        incoming = INCOMING.get()
        if incoming is not None and incoming.trace_id:
            event.setdefault("trace_id", incoming.trace_id)
        return event

    shared_processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_origin,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: structlog.typing.Processor
    if as_json:
        shared_processors.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        # Without the values of variables: an engine has so many that writing them takes seconds.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared_processors,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    structlog.configure(
        processors=[*shared_processors, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
