"""Many answers over one call: what they say between two writes travels in one message.

An engine's step gives a token to every sequence of its batch. Sent one by one, those tokens cost a
system call and a wake-up each, here and on the router, and more than ten small segments at once
also wait for the network's acknowledgements.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from baton.v1 import decode_pb2
from shared.errors import InvalidRequestError, WorkerLostError
from shared.rpc.cancellation import run_to_end
from shared.rpc.interceptors import describe_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    Generate = Callable[[decode_pb2.DecodeRequest], AsyncGenerator[decode_pb2.DecodeResponse, None]]

_METHOD = "/baton.v1.Decode/Session"
#: Where a message is cut: far below what channels accept, far above what a step's tokens need.
MAX_MESSAGE_BYTES = 2**20
#: Of a token and its answer's id.
MAX_PLAIN_BYTES = 15
#: Longer pieces are smaller as events.
MAX_PLAIN_TOKENS = 16
#: After so long without anything else, an empty message says that the worker is there.
HEARTBEAT_S = 1.0


class AnswerSession:
    """One router's answers on this worker. The call is the lease of all of them."""

    def __init__(self, generate: Generate, *, over: asyncio.Event) -> None:
        """`over`: set when no answer will begin any more."""
        self._generate = generate
        self._over = over
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._events: deque[decode_pb2.AnswerEvent] = deque()
        self._has_news = asyncio.Event()
        self._num_messages = 0
        self._is_quiet = False
        #: Whether the router reads the tokens of a step from two lists.
        self._packs = False

    async def run(
        self, requests: AsyncIterator[decode_pb2.SessionRequest]
    ) -> AsyncGenerator[decode_pb2.SessionResponse, None]:
        """Answer until the router ends its side, or this worker is over, and the last answer ended.

        When this is closed, every answer has been cancelled and has freed what it held.

        Raises:
            InvalidRequestError: two answers with one id.
        """
        reading = asyncio.create_task(self._read(requests))
        reading.add_done_callback(lambda _: self._has_news.set())
        beating = asyncio.create_task(self._beat())
        ending = asyncio.create_task(self._over.wait())
        ending.add_done_callback(lambda _: self._has_news.set())
        try:
            yield decode_pb2.SessionResponse()
            while not self._is_done(reading):
                await self._has_news.wait()
                self._has_news.clear()
                if self._is_quiet:
                    self._is_quiet = False
                    yield decode_pb2.SessionResponse()
                while self._events:
                    yield self._next_message()
                if reading.done():
                    reading.result()
        finally:
            await run_to_end(self._close(reading, beating, ending))

    def _is_done(self, reading: asyncio.Task[None]) -> bool:
        is_ending = reading.done() or self._over.is_set()
        return is_ending and not self._answers and not self._events

    async def _beat(self) -> None:
        """Have an empty message sent after each `HEARTBEAT_S` without another message."""
        while True:
            num_before = self._num_messages
            await asyncio.sleep(HEARTBEAT_S)
            if self._num_messages == num_before:
                self._is_quiet = True
                self._has_news.set()

    async def _read(self, requests: AsyncIterator[decode_pb2.SessionRequest]) -> None:
        async for request in requests:
            self._packs = self._packs or request.reads_plain_tokens
            running = self._answers.get(request.answer_id)
            if not request.HasField("start"):
                if running is not None:
                    running.cancel()
            elif running is not None:
                raise InvalidRequestError(f"answer {request.answer_id} is running already")
            else:
                self._start(request.answer_id, request.start)

    def _start(self, answer_id: int, request: decode_pb2.DecodeRequest) -> None:
        task = asyncio.create_task(self._answer(answer_id, request))
        self._answers[answer_id] = task
        task.add_done_callback(lambda _: self._forget(answer_id))

    def _forget(self, answer_id: int) -> None:
        del self._answers[answer_id]
        self._has_news.set()

    async def _answer(self, answer_id: int, request: decode_pb2.DecodeRequest) -> None:
        ended = False
        try:
            async with aclosing(self._generate(request)) as pieces:
                async for piece in pieces:
                    self._push(decode_pb2.AnswerEvent(answer_id=answer_id, piece=piece))
                    ended = bool(piece.finish_reason)
            if not ended:
                raise WorkerLostError("the answer ended without a finish reason")
        except Exception as error:  # noqa: BLE001 the process edge: becomes an event
            event = _failed(answer_id, error)
            if not ended:
                self._push(event)

    def _push(self, event: decode_pb2.AnswerEvent) -> None:
        self._events.append(event)
        self._has_news.set()

    def _next_message(self) -> decode_pb2.SessionResponse:
        events = self._events
        self._num_messages += 1
        message = decode_pb2.SessionResponse()
        num_bytes = 0
        #: Answers with an event in the message: plain tokens would be read before it.
        told: set[int] = set()
        while events and num_bytes < MAX_MESSAGE_BYTES:
            event = events.popleft()
            plain = _plain_tokens(event) if self._packs and event.answer_id not in told else ()
            if plain:
                num_bytes += len(plain) * MAX_PLAIN_BYTES
                message.plain_answer_ids.extend([event.answer_id] * len(plain))
                message.plain_token_ids.extend(plain)
            else:
                told.add(event.answer_id)
                num_bytes += event.ByteSize()
                message.events.append(event)
        return message

    async def _close(self, *others: asyncio.Task[Any]) -> None:
        tasks = [*others, *self._answers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _plain_tokens(event: decode_pb2.AnswerEvent) -> Sequence[int]:
    """Return the tokens of an event that has a few tokens and nothing else; empty of any other."""
    token_ids = event.piece.token_ids
    is_plain = 0 < len(token_ids) <= MAX_PLAIN_TOKENS and len(event.piece.ListFields()) == 1
    return token_ids if is_plain else ()


def _failed(answer_id: int, error: Exception) -> decode_pb2.AnswerEvent:
    status, details, metadata = describe_error(error, _METHOD)
    code: int = status.value[0]
    return decode_pb2.AnswerEvent(
        answer_id=answer_id,
        error=decode_pb2.AnswerError(code=code, message=details, metadata=dict(metadata)),
    )
