"""One streamed request."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self

import grpc

from baton_client import contract
from baton_client.errors import (
    BatonError,
    DeadlineError,
    RequestCancelledError,
    UnavailableError,
    UnsupportedError,
    from_rpc_error,
)
from baton_client.progress import Progress
from baton_client.responses import join, read_piece

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from baton_client.retry import RetryPolicy
    from baton_client.types import Generation, Piece

    Request = contract.GenerateRequest | contract.ChatRequest


class AsyncStream:
    """Pieces of a request's answers, in order.

    The request starts with the first `async for` or `collect`. `aclose`, leaving the `async with`,
    cancelling the task that reads, or dropping the last reference cancels it on every server.

    If the server is lost, the request continues on the next one after the received part, without a
    gap. If that is not possible, the error's `received` is exactly that part.
    """

    def __init__(
        self,
        start: Callable[[Request, float], Any],
        request: Request,
        *,
        retry: RetryPolicy,
        timeout_s: float,
    ) -> None:
        """Make a stream.

        `start` calls a server, with a time limit in seconds; the next one after each failure.
        """
        self._start = start
        self._request = request
        self._retry = retry
        self._timeout_s = timeout_s
        self._deadline_s = 0.0
        self._request_id = request.request_id
        self._progress = Progress(request.params.n or 1)
        self._num_attempts = 0
        #: Whether the server must report that it has read the tools.
        self._needs_reading = isinstance(request, contract.ChatRequest) and bool(request.tools)
        #: Whether the server must report that it continues instead of beginning again.
        self._expects_resumed = False
        self._call: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def __del__(self) -> None:
        # The last reference may be dropped in any thread; a call belongs to its loop.
        loop, call = self._loop, self._call
        if not self._closed and call is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(call.cancel)

    def is_closed(self) -> bool:
        """Return whether no more pieces will come."""
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
        except BatonError as error:
            error.received = self._progress.received()
            await self.aclose()
            raise
        except BaseException:
            await self.aclose()
            raise
        if response is grpc.aio.EOF:
            await self.aclose()
            raise StopAsyncIteration
        self._request_id = response.request_id or self._request_id
        piece = read_piece(response)
        self._progress.take(piece, identity=response.identity)
        return piece

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
        while True:
            try:
                if self._call is None:
                    self._begin()
                response = await self._call.read()
            except grpc.aio.AioRpcError as error:
                if self._progress.is_whole:
                    return grpc.aio.EOF  # everything has arrived except the end of the call
                await self._wait_for_next(from_rpc_error(error, request_id=self._request_id), error)
                continue
            if response is not grpc.aio.EOF:
                self._check(response)
            return response

    def _begin(self) -> None:
        if self._closed:
            message = "the stream was closed while it waited for another server"
            raise RequestCancelledError(message, request_id=self._request_id)
        self._loop = asyncio.get_running_loop()
        now_s = time.monotonic()
        if not self._num_attempts:
            self._deadline_s = now_s + self._timeout_s
        if self._deadline_s <= now_s:
            message = f"no time left for the request: {self._timeout_s:g} s"
            raise DeadlineError(message, request_id=self._request_id)
        self._num_attempts += 1
        self._expects_resumed = self._progress.has_begun
        if self._expects_resumed:
            self._progress.write(self._request)
        self._call = self._start(self._request, self._deadline_s - now_s)

    async def _wait_for_next(self, failure: BatonError, cause: Exception) -> None:
        """Wait until the next attempt may be made, or raise `failure`."""
        remaining_s = self._deadline_s - time.monotonic()
        delay_s = self._retry.delay_s(failure, self._num_attempts, remaining_s=remaining_s)
        if delay_s is None or (self._progress.has_begun and not self._progress.can_be_resumed):
            raise failure from cause
        self._call = None
        await asyncio.sleep(delay_s)
        if self._deadline_s <= time.monotonic():
            raise failure from cause  # more precise than that the time is over

    def _check(self, response: contract.GenerateResponse) -> None:
        """Check the first response: an older server ignores fields that it does not know."""
        if self._expects_resumed and not response.resumed:
            raise UnavailableError(
                "the server of the request is lost, and the next one cannot continue it",
                request_id=self._request_id,
            )
        self._expects_resumed = False
        if self._needs_reading and not response.reading:
            message = "the server is too old for tools: it has not read them"
            error = UnsupportedError(message, request_id=self._request_id)
            error.param = "tools"
            raise error
        self._needs_reading = False
