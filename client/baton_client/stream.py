"""One streamed request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import grpc

from baton_client.errors import RequestCancelledError, from_rpc_error
from baton_client.responses import join, read_piece
from baton_client.retry import attempts

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from baton_client.retry import RetryPolicy
    from baton_client.types import Generation, Piece


class AsyncStream:
    """Pieces of a request's answers, in the order in which they were written.

    The request starts with the first `async for` or `collect`. `aclose`, leaving the `async with`,
    cancelling the task that reads, or dropping the last reference cancels it on every server.
    """

    def __init__(
        self,
        start: Callable[[float], Any],
        *,
        retry: RetryPolicy,
        timeout_s: float,
        request_id: str = "",
    ) -> None:
        self._start = start
        self._retry = retry
        self._timeout_s = timeout_s
        self._request_id = request_id
        self._call: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def __del__(self) -> None:
        # The last reference may be dropped in any thread; a call belongs to its loop.
        if not self._closed and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call.cancel)

    def is_closed(self) -> bool:
        """Whether nothing more will come."""
        return self._closed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        if self.is_closed():
            raise StopAsyncIteration
        try:
            response = await self._next_response()
        except asyncio.CancelledError:
            if self.is_closed():
                message = "the stream was closed while it was read"
                raise RequestCancelledError(message, request_id=self._request_id) from None
            await self.aclose()
            raise
        except BaseException:
            await self.aclose()
            raise
        if response is grpc.aio.EOF:
            await self.aclose()
            raise StopAsyncIteration
        self._request_id = response.request_id or self._request_id
        return read_piece(response)

    async def collect(self) -> Generation:
        """Read to the end and return the whole."""
        return join([piece async for piece in self])

    async def aclose(self) -> None:
        """Cancel the request if it still runs. Safe to repeat."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _next_response(self) -> Any:
        if self._call is None:
            # Only here may a failure be repeated: the caller has seen nothing yet.
            return await attempts(
                self._first_response,
                policy=self._retry,
                timeout_s=self._timeout_s,
                request_id=self._request_id,
            )
        try:
            return await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, request_id=self._request_id) from error

    async def _first_response(self, remaining_s: float) -> Any:
        self._loop = asyncio.get_running_loop()
        self._call = self._start(remaining_s)
        return await self._call.read()
