"""Responses in the background: made after their requests have been answered."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from services.router.openai.errors import FieldError, error_status
from services.router.openai.responses_api.items import IN_PROGRESS
from shared.errors import DrainingError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.openai.replies.answers import Part
    from services.router.openai.responses_api.output import Response
    from services.router.openai.responses_api.reply import ResponseReply
    from services.router.openai.responses_api.stored.record import Record

log = structlog.get_logger(__name__)

QUEUED = "queued"


class _Run:
    """One response. `work` makes it and may be cancelled; `end` stores what became of it."""

    def __init__(self, parts: AsyncGenerator[Part], reply: ResponseReply, record: Record) -> None:
        self._parts = parts
        self._reply = reply
        self._record = record
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
            return await self._reply.whole(parts)

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
        await self._record.write(self._outcome())

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
    """All responses that are being made in the background, by tenant and id."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], _Run] = {}
        self._stopping = False

    async def start(
        self, parts: AsyncGenerator[Part], reply: ResponseReply, record: Record
    ) -> Response:
        """Store the response as queued, begin to make it, and return it.

        Raises:
            DrainingError: the router is stopping.
            FieldError: the conversation does not fit into the store.
        """
        if self._stopping:
            raise DrainingError("the router is stopping: it begins no response in the background")
        response = reply.begun(QUEUED)
        if not await record.write(response):
            message = "input is too long to be stored: see --responses-store-bytes"
            raise FieldError(message, param="input")
        key = (record.tenant, response.id)
        run = self._runs[key] = _Run(parts, reply, record)
        run.end.add_done_callback(lambda _: self._runs.pop(key, None))
        return response

    async def cancel(self, tenant: str, response_id: str) -> None:
        """Cancel a response, if it is being made. When this returns, it has ended and is stored.

        Its workers have been told before the response is stored as cancelled.
        """
        run = self._runs.get((tenant, response_id))
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
