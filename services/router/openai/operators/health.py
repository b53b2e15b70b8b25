"""Endpoints for operators and load generators: liveness, readiness, version, metrics."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from services.router.openai.replies.responses import json_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector


class HealthEndpoints:
    """Liveness and readiness differ: a router without workers is alive, but not ready."""

    def __init__(
        self,
        not_ready_because: Callable[[], Sequence[str]],
        notes: Callable[[], Sequence[str]],
        registry: CollectorRegistry,
        version: str,
        whole: Callable[[], Awaitable[Collector]] | None = None,
    ) -> None:
        """Make the endpoints.

        `not_ready_because` returns what is missing; nothing when requests can be served. `notes`
        returns parts that are missing though requests can be served. `whole`: returns what
        `/metrics` shows in place of `registry`.
        """
        self._whole = whole
        self._not_ready_because = not_ready_because
        self._notes = notes
        self._registry = registry
        self._version = version

    async def live(self) -> Response:
        """Report that the process is alive, whether or not it can serve."""
        return json_response({"status": "alive"})

    async def health(self) -> Response:
        """Do as `/ready`, under the name that deployments wait for."""
        return await self.ready()

    async def ping(self) -> Response:
        """Do as `/ready`, under the name that some platforms request."""
        return await self.ready()

    async def ready(self) -> Response:
        """Report that requests can be served; otherwise status 503 and what is missing."""
        reasons, notes = list(self._not_ready_because()), list(self._notes())
        if not reasons:
            return json_response({"status": "ready", "reasons": reasons, "notes": notes})
        body = {"status": "not_ready", "reasons": reasons, "notes": notes}
        response = json_response(body, status=HTTPStatus.SERVICE_UNAVAILABLE)
        response.headers["retry-after"] = "1"
        return response

    async def version(self) -> Response:
        """Return Baton's version."""
        return json_response({"version": self._version})

    async def metrics(self) -> Response:
        """Return the metrics in Prometheus' text format.

        Not in OpenMetrics, for which Prometheus asks first: prometheus_client writes an underscore
        for the colon in vLLM's names there.
        """
        shown = self._registry if self._whole is None else await self._whole()
        text = generate_latest(shown)
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})
