"""Responses in the background: made after their requests have been answered."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import structlog

from services.router.openai.errors import FieldError, error_status
from services.router.openai.responses_api.stored.base import IN_PROGRESS, QUEUED
from shared.errors import DrainingError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

    from services.router.openai.replies.answers import Part
    from services.router.openai.responses_api.output import Response
    from services.router.openai.responses_api.reply import ResponseReply
    from services.router.openai.responses_api.stored.base import ResponseKey, RunBoard
    from services.router.openai.responses_api.stored.record import Record

log = structlog.get_logger(__name__)

#: Time between two renewals on the board: within it a run hears that it has to end.
BEAT_S = 0.5


class _Run:
    """One response. `work` makes it and may be cancelled; `end` stores its end."""

    def __init__(
        self, parts: AsyncGenerator[Part], reply: ResponseReply, record: Record, *, streams: bool
    ) -> None:
        self._parts = parts
        self._reply = reply
        self._record = record
        self._streams = streams
        #: Why the work was cancelled, if not by the client.
        self._reason: Exception | None = None
        self._work = asyncio.create_task(self._make())
        self.end = asyncio.create_task(self._end())

    def cancel(self, reason: Exception | None = None) -> None:
        """End the work. With a reason the response has failed; without, it is cancelled."""
        if not self._work.done():
            self._reason = reason
            self._work.cancel()

    async def _make(self) -> Response:
        async with aclosing(self._begun()) as parts:
            if not self._streams:
                return await self._reply.whole(parts)
            async for _, piece in parts:
                self._record.add_events(self._reply.id, self._reply.events(piece))
        return self._reply.ended()

    async def _begun(self) -> AsyncGenerator[Part]:
        """Yield the parts; the response is in progress from the first one on."""
        is_queued = True
        async with aclosing(self._parts):
            async for part in self._parts:
                if is_queued:
                    await self._record.write(self._reply.begun(IN_PROGRESS))
                    is_queued = False
                yield part

    async def _end(self) -> None:
        await asyncio.wait((self._work,))
        response = self._outcome()
        await self._record.write(response)
        if self._streams:
            self._record.add_events(response.id, [self._reply.ending(response)], last=True)

    def _outcome(self) -> Response:
        if self._work.cancelled():
            return self._reply.cancelled() if self._reason is None else self._failed(self._reason)
        error = self._work.exception()
        if isinstance(error, Exception):
            return self._failed(error)
        return self._work.result()

    def _failed(self, error: Exception) -> Response:
        log.warning("background_response_failed", status=error_status(error), error=repr(error))
        return self._reply.failure(error)


class BackgroundRuns:
    """All responses that this process makes in the background, by tenant and id."""

    def __init__(self, board: RunBoard | None) -> None:
        """`board`: where other routers see them; None: there are no others."""
        self._board = board
        self._runs: dict[ResponseKey, _Run] = {}
        self._beats: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(
        self, parts: AsyncGenerator[Part], reply: ResponseReply, record: Record, *, streams: bool
    ) -> Response:
        """Store the response as queued, begin to make it, and return it.

        `streams`: its events are stored as well.

        Raises:
            DrainingError: the router is stopping.
            FieldError: the conversation does not fit into the store.
            UnavailableError: the store cannot be used.
        """
        if self._stopping:
            raise DrainingError("the router is stopping: it begins no response in the background")
        response = reply.begun(QUEUED)
        if not await record.begin(response, reply.queued() if streams else ()):
            message = "input is too long to be stored: see --responses-store-bytes"
            raise FieldError(message, param="input")
        key = (record.tenant, response.id)
        if self._board is not None:
            await self._board.renew([key])
            self._beats = self._beats or asyncio.create_task(self._beat(self._board))
        run = self._runs[key] = _Run(parts, reply, record, streams=streams)
        run.end.add_done_callback(lambda _: self._runs.pop(key, None))
        return response

    @property
    def keys(self) -> Collection[ResponseKey]:
        """The responses that this process makes."""
        return tuple(self._runs)

    def has(self, key: ResponseKey) -> bool:
        """Return whether this process makes the response."""
        return key in self._runs

    async def cancel(self, key: ResponseKey) -> None:
        """Cancel a response, if this process makes it. When this returns, it has ended.

        Its workers have been told before the response is stored as cancelled.
        """
        run = self._runs.get(key)
        if run is not None:
            run.cancel()
            await asyncio.wait((run.end,))

    async def stop(self) -> None:
        """End all responses as failed, and begin no more."""
        self._stopping = True
        ends = [run.end for run in self._runs.values()]
        for run in self._runs.values():
            run.cancel(DrainingError("the router stopped before the response was complete"))
        if ends:
            await asyncio.wait(ends)
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.wait((self._beats,))

    async def _beat(self, board: RunBoard) -> None:
        """Renew the runs on the board; end those that other routers want to end."""
        while True:
            await asyncio.sleep(BEAT_S)
            if not self._runs:
                continue
            with suppress(UnavailableError):
                for key in await board.renew(self.keys):
                    if key in self._runs:
                        self._runs[key].cancel()
