"""What the router's gRPC health service says: what `GET /health` says, except of the directory."""

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
    """While the block runs, the server and its Router serve as long as a request can be served.

    Its Directory serves from the start: workers join there before anything else works.
    """
    await rpc.set_serving(DIRECTORY_SERVICE, serving=True)
    async with running(_report(rpc, endpoints)):
        yield


async def _report(rpc: RpcServer, endpoints: EndpointPool) -> None:
    while True:
        serving = endpoints.is_ready
        await rpc.set_serving("", ROUTER_SERVICE, serving=serving)
        # The lambda is called within this turn of the loop alone.
        await endpoints.wait_until(lambda: endpoints.is_ready is not serving)  # noqa: B023
