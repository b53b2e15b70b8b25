"""The router's gRPC health service: as `GET /health`, except for the directory."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from services.router.security import DIRECTORY_SERVICE, ROUTER_SERVICE
from shared.rpc.cancellation import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.router.catalogue.readiness import Readiness
    from shared.rpc.server import RpcServer


@asynccontextmanager
async def reporting_health(rpc: RpcServer, readiness: Readiness) -> AsyncIterator[None]:
    """Report the Router as serving while requests can be served, for the time of the block.

    The Directory is reported as serving from the start: workers must register before any request
    can be served.
    """
    await rpc.set_serving(DIRECTORY_SERVICE, serving=True)
    async with running(_report(rpc, readiness)):
        yield


async def _report(rpc: RpcServer, readiness: Readiness) -> None:
    while True:
        serving = readiness.is_ready
        await rpc.set_serving("", ROUTER_SERVICE, serving=serving)
        await readiness.become(ready=not serving)
