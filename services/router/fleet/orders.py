"""Orders to workers over gRPC, to all of a kind at a time, each with a deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

import grpc

from shared.errors import BatonError, InvalidRequestError, UnavailableError, UnsupportedError
from shared.rpc.status import from_rpc_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from typing import TypeAlias

    from baton.v1 import lifecycle_pb2_grpc, worker_pb2_grpc
    from services.router.workers.endpoint import Endpoint
    from shared.rpc.channel import ChannelPool

T = TypeVar("T")
#: The client of one service of workers.
Stub = TypeVar("Stub")

if TYPE_CHECKING:
    LifecycleOrders: TypeAlias = "Orders[lifecycle_pb2_grpc.LifecycleAsyncStub]"
    WorkerOrders: TypeAlias = "Orders[worker_pb2_grpc.WorkerAsyncStub]"

#: Of orders that only set something.
QUICK_S = 10.0


class Orders(Generic[Stub]):
    """Calls one service of workers.

    Its channels are its own: those of requests are closed when a worker leaves, and an order goes
    on while the process at the address becomes another incarnation.
    """

    def __init__(self, channels: ChannelPool, stub: Callable[[grpc.aio.Channel], Stub]) -> None:
        """Take the channels, which only orders use; the caller closes them.

        `stub`: makes the service's client.
        """
        self._channels = channels
        self._stub = stub
        self._used: set[str] = set()

    async def keep(self, addresses: Collection[str]) -> None:
        """Close the channels to all other addresses. No order must be running there."""
        for address in self._used.difference(addresses):
            await self._channels.drop(address)
        self._used.intersection_update(addresses)

    async def one(
        self,
        endpoint: Endpoint,
        order: Callable[[Stub], Awaitable[T]],
    ) -> T:
        """Give one worker an order. `order` must have a deadline.

        Raises:
            BatonError: the worker's, or that it cannot be reached.
        """
        address = endpoint.record.address
        self._used.add(address)
        try:
            return await order(self._stub(self._channels.get(address)))
        except grpc.RpcError as error:
            raise from_rpc_error(error, peer=endpoint.name) from error

    async def each(
        self,
        endpoints: Sequence[Endpoint],
        order: Callable[[Stub], Awaitable[T]],
    ) -> dict[Endpoint, T | BatonError]:
        """Give all of them an order at a time; return the answer or the error of each."""
        calls = (self.one(endpoint, order) for endpoint in endpoints)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        found: dict[Endpoint, T | BatonError] = {}
        for endpoint, answer in zip(endpoints, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, BatonError):
                raise answer
            found[endpoint] = answer
        return found


def succeeded(answers: Mapping[Endpoint, T | BatonError]) -> dict[Endpoint, T]:
    """Return the answers, if none is an error.

    Raises:
        BatonError: one is; with the names of the workers and their reasons.
    """
    failed = {e: answer for e, answer in answers.items() if isinstance(answer, BatonError)}
    if failed:
        raise _together(failed)
    return {e: answer for e, answer in answers.items() if not isinstance(answer, BatonError)}


def _together(failed: Mapping[Endpoint, BatonError]) -> BatonError:
    """Return one error for several: the caller's fault if it is for one of them."""
    text = "; ".join(_named(endpoint.name, error) for endpoint, error in failed.items())
    for error in failed.values():
        if isinstance(error, UnsupportedError):
            return UnsupportedError(text, param=error.param)
        if isinstance(error, InvalidRequestError):
            return InvalidRequestError(text, param=error.param)
    return UnavailableError(text)


def _named(worker: str, error: BatonError) -> str:
    """Return the error's text with the worker's name in front; most workers write it themselves."""
    text = str(error)
    return text if text.startswith((f"{worker}:", f"{worker} ")) else f"{worker}: {text}"
