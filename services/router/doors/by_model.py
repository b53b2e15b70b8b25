"""From a request to the endpoint of the model that its body names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.openai.http.arrival import arrived_s
from services.router.openai.http.body import read_body
from services.router.openai.http.disconnect import unless_disconnected
from services.router.openai.http.named_model import named_model

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from services.router.openai.backend import Backend
    from services.router.openai.catalogue import Catalogue


class Endpoint(Protocol):
    """What answers a request."""

    def __call__(self, request: Request) -> Awaitable[Response]:
        """Return the response."""
        ...


class ByModel:
    """Makes endpoints that are built for each request, with the backend of its model."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def __call__(
        self, method: Callable[..., Any], build: Callable[[Backend], Endpoint]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that calls `build(backend)`, documented as `method` is."""

        async def endpoint(request: Request) -> Response:
            return await build(await self._backend(request))(request)

        endpoint.__name__, endpoint.__doc__ = method.__name__, method.__doc__
        return endpoint

    async def _backend(self, request: Request) -> Backend:
        arrived_s(request)
        common = self._catalogue.common
        raw = await read_body(request, common.limits)
        backend = self._catalogue.pick(named_model(raw), common.caller_of(request))
        cold_start = backend.cold_start
        if cold_start is not None and not cold_start.is_over:
            await unless_disconnected(request.receive, cold_start.wait())
        return backend
