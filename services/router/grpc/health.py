"""The router's gRPC health service: as `GET /health`, except for the directory."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from services.router.security import DIRECTORY_SERVICE, ROUTER_SERVICE
from shared.rpc.cancellation import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.router.workers.endpoints import EndpointPool
    from shared.rpc.server import RpcServer


@asynccontextmanager
async def reporting_health(rpc: RpcServer, endpoints: EndpointPool) -> AsyncIterator[None]:
    """Report the Router as serving while requests can be served, for the time of the block.

    The Directory is reported as serving from the start: workers must register before any request
    can be served.
    """
    await rpc.set_serving(DIRECTORY_SERVICE, serving=True)
    async with running(_report(rpc, endpoints)):
        yield


async def _report(rpc: RpcServer, endpoints: EndpointPool) -> None:
    while True:
        serving = endpoints.is_ready
        await rpc.set_serving("", ROUTER_SERVICE, serving=serving)
        # The lambda is called within this iteration of the loop only.
        await endpoints.wait_until(lambda: endpoints.is_ready is not serving)  # noqa: B023
