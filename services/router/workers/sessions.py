"""Calls to decode workers: one session per worker carries all of its answers to this router.

The pieces of an answer in a session's message wait in its `AnswerCall` until the reader asks for
them; a late reader gets all of them at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import grpc

from baton.v1 import common_pb2, decode_pb2, decode_pb2_grpc
from services.router.workers.pieces import PlainPiece, is_full, merged
from shared.errors import (
    BatonError,
    DeadlineError,
    RequestCancelledError,
    WorkerLostError,
    WorkerSilentError,
)
from shared.rpc.status import from_rpc_error, from_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from services.router.workers.pieces import Piece
    from shared.rpc.channel import ChannelPool

    #: Takes an answer's plain tokens at once; returns whether it took them.
    Take = Callable[[Sequence[int]], bool]

#: Pieces kept for a slow reader. Later ones are merged into the last, where a token takes a few
#: bytes instead of a few hundred.
MAX_PIECES = 2
#: Interval at which a session checks for messages of its worker, and the allowed number of checks
#: in a row without a message. Checks are counted, not time: after a pause of the router, pending
#: messages are read before the next check.
LOOK_S = 1.0
MAX_SILENT_LOOKS = 6
#: An answer that has tokens counts as lost after this time without a further one.
STALL_S = 60.0

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class SessionPool:
    """Opens a session per address on first use, and another one when it has broken."""

    def __init__(self, channels: ChannelPool, *, stall_s: float = STALL_S) -> None:
        """Make an empty pool. `stall_s`: longest time between two tokens of an answer."""
        self._channels = channels
        self._max_idle_looks = max(1, round(stall_s / LOOK_S))
        self._sessions: dict[str, Session] = {}
        #: Those of workers that left; the worker ends them.
        self._old: list[Session] = []

    def start(
        self, address: str, request: decode_pb2.DecodeRequest, *, timeout_s: float, peer: str
    ) -> AnswerCall:
        """Ask the worker at `address`, which errors call `peer`, for one answer."""
        session = self._sessions.get(address)
        if session is None or session.ended:
            session = self._sessions[address] = Session(
                self._channels.get(address),
                max_idle_looks=self._max_idle_looks,
                has_heartbeats=session is not None and session.has_heartbeats,
            )
        return session.start(request, timeout_s=timeout_s, peer=peer)

    def abort_answers(self) -> None:
        """End all answers now, with the finish reason `abort`."""
        for session in (*self._sessions.values(), *self._old):
            session.abort_answers()

    def renew(self, address: str) -> None:
        """Begin another session with the next answer; answers of the present one go on."""
        session = self._sessions.pop(address, None)
        if session is not None:
            self._old = [each for each in (*self._old, session) if not each.ended]

    async def drop(self, address: str) -> None:
        """End the session and the channel to an address that no worker serves any more."""
        session = self._sessions.pop(address, None)
        if session is not None:
            await session.close()
        await self._channels.drop(address)

    async def close(self) -> None:
        """End every session; workers cancel what runs in them. Channels stay."""
        sessions, self._sessions = [*self._sessions.values(), *self._old], {}
        await asyncio.gather(*(session.close() for session in sessions))


class Session:
    """One call of Decode.Session. If it ends, so do all of its answers.

    It also ends when the worker is silent for too long: a stopped process keeps its connections.
    """

    def __init__(
        self, channel: grpc.aio.Channel, *, max_idle_looks: int, has_heartbeats: bool
    ) -> None:
        """Make a session. `has_heartbeats`: the worker sends a message at least every second."""
        stub: decode_pb2_grpc.DecodeAsyncStub = decode_pb2_grpc.DecodeStub(channel)
        self._call = stub.Session()
        self._answers: dict[int, AnswerCall] = {}
        self._num_started = 0
        self._outgoing: asyncio.Queue[decode_pb2.SessionRequest] = asyncio.Queue()
        self._max_idle_looks = max_idle_looks
        self._num_messages = 0
        #: Older workers send nothing while there is nothing to report.
        self.has_heartbeats = has_heartbeats
        self._silent = False
        self.ended = False
        work = (self._read(), self._write(), self._watch())
        self._tasks = [asyncio.create_task(each) for each in work]

    def start(
        self, request: decode_pb2.DecodeRequest, *, timeout_s: float, peer: str
    ) -> AnswerCall:
        """Begin an answer."""
        self._num_started += 1
        answer = AnswerCall(self, self._num_started, timeout_s=timeout_s, peer=peer)
        self._answers[answer.answer_id] = answer
        self._outgoing.put_nowait(
            decode_pb2.SessionRequest(
                answer_id=answer.answer_id, start=request, reads_plain_tokens=True
            )
        )
        return answer

    def forget(self, answer_id: int, *, cancel: bool) -> None:
        """Drop the answer; with `cancel`, tell the worker to cancel it."""
        if self._answers.pop(answer_id, None) is not None and cancel and not self.ended:
            self._outgoing.put_nowait(decode_pb2.SessionRequest(answer_id=answer_id, cancel=True))

    def abort_answers(self) -> None:
        """See SessionPool."""
        for answer in list(self._answers.values()):
            answer.abort()

    async def close(self) -> None:
        """End the call and all answers that still run."""
        self._end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self) -> None:
        self._call.cancel()
        for task in self._tasks[1:]:
            task.cancel()

    async def _watch(self) -> None:
        num_before, num_silent = 0, 0
        while True:
            await asyncio.sleep(LOOK_S)
            for answer in list(self._answers.values()):
                answer.look(self._max_idle_looks)
            is_silent = self._num_messages == num_before and self.has_heartbeats
            num_silent = num_silent + 1 if is_silent else 0
            num_before = self._num_messages
            if num_silent >= MAX_SILENT_LOOKS:
                self._silent = True
                self._call.cancel()
                return

    async def _read(self) -> None:
        reason: grpc.RpcError | None = None
        try:
            while (read := await self._call.read()) is not grpc.aio.EOF:
                self._num_messages += 1
                self._take(cast("decode_pb2.SessionResponse", read))
        except grpc.RpcError as error:
            reason = error
        except asyncio.CancelledError:
            # grpc raises it for a call that was cancelled here.
            if not self._call.cancelled():
                raise
        finally:
            self.ended = True
            self._end()
            for answer in list(self._answers.values()):
                answer.fail(self._why_ended(reason, answer.peer))

    def _take(self, message: decode_pb2.SessionResponse) -> None:
        """Give each answer what the message says of it."""
        # Copied as lists: to go through a message's own field costs several times as much.
        plain_ids, token_ids = message.plain_answer_ids[:], message.plain_token_ids[:]
        events = message.events
        # A worker that sends plain tokens has heartbeats, too.
        self.has_heartbeats = self.has_heartbeats or not events
        # Answers with something else behind their plain tokens: both become one piece.
        told = {event.answer_id for event in events} if events else frozenset()
        for answer_id, own_ids in _by_answer(plain_ids, token_ids):
            answer = self._answers.get(answer_id)
            if answer is not None:
                answer.push_tokens(own_ids, is_alone=answer_id not in told)
        for event in events:
            answer = self._answers.get(event.answer_id)
            if answer is None:
                continue
            if event.HasField("piece"):
                answer.push(event.piece)
            else:
                answer.fail(_meaning(event.error, answer.peer))

    def _why_ended(self, error: grpc.RpcError | None, peer: str) -> BatonError:
        if self._silent:
            return WorkerSilentError(f"{peer} sent nothing for {MAX_SILENT_LOOKS * LOOK_S:.0f} s")
        if error is None:
            return WorkerLostError(f"{peer} ended its session")
        return _not_cancelled(from_rpc_error(error, peer=peer))

    async def _write(self) -> None:
        # `_read` handles the reason for which a call has ended.
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                await self._call.write(await self._outgoing.get())


class AnswerCall:
    """One answer of a session, for one reader."""

    def __init__(self, session: Session, answer_id: int, *, timeout_s: float, peer: str) -> None:
        self.answer_id = answer_id
        self.peer = peer
        self._session = session
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        # One timer per answer, none per token.
        self._timer = self._loop.call_later(timeout_s, self._expire)
        self._pieces: list[Piece] = []
        self._num_pushed = 0
        self._num_pushed_before = 0
        self._num_idle_looks = 0
        self._error: BatonError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._take: Take | None = None

    async def read(self, take: Take | None = None) -> list[Piece]:
        """Wait for at least one piece; return all pieces since the last read, in order.

        Plain tokens that come meanwhile are offered to `take` first, and what it raises is raised
        here.

        Raises:
            BatonError: the worker's error; WorkerLostError if the worker is gone.
        """
        if not self._pieces and self._error is None:
            self._reader, self._take = self._loop.create_future(), take
            try:
                await self._reader
            finally:
                self._reader = self._take = None
        if not self._pieces and self._error is not None:
            raise self._error
        pieces, self._pieces = self._pieces, []
        return pieces

    def cancel(self) -> None:
        """Cancel the answer if it has not ended. Safe to repeat."""
        self._end(cancel=True)

    def abort(self) -> None:
        """Cancel the answer; its reader gets what has arrived, and the reason `abort`."""
        self._end(cancel=True)
        self.push(decode_pb2.DecodeResponse(finish_reason=common_pb2.FINISH_REASON_ABORT))

    def push_tokens(self, token_ids: list[int], *, is_alone: bool) -> None:
        """Add plain tokens of one message. `is_alone`: the message has no more of this answer."""
        if self._take is not None and is_alone:
            try:
                if self._take(token_ids):
                    self._num_pushed += 1
                    return
            except Exception as error:  # noqa: BLE001 the session has other answers
                self._fail_reader(error)
                return
        self.push(PlainPiece(token_ids))

    def push(self, piece: Piece) -> None:
        """Add a piece that has arrived.

        At most `MAX_PIECES` wait for a late reader; later ones are merged into the last, unless it
        is full of hidden states. A piece that is a part of a message keeps all of it in memory,
        with pieces of all answers: all but the first are copies.
        """
        self._num_pushed += 1
        if len(self._pieces) < MAX_PIECES or is_full(self._pieces[-1].hidden_states):
            if self._pieces and not isinstance(piece, PlainPiece):
                own = decode_pb2.DecodeResponse()
                own.CopyFrom(piece)
                self._pieces.append(own)
            else:
                self._pieces.append(piece)
        else:
            self._pieces[-1] = merged(self._pieces[-1], piece)
        if piece.finish_reason:
            self._end(cancel=False)
        self._wake()

    def look(self, max_idle: int) -> None:
        """Fail the answer after `max_idle` checks without a new piece.

        The first piece may take longer.
        """
        is_idle = self._num_pushed_before == self._num_pushed > 0
        self._num_idle_looks = self._num_idle_looks + 1 if is_idle else 0
        self._num_pushed_before = self._num_pushed
        if self._num_idle_looks >= max_idle:
            self._error = WorkerSilentError(f"{self.peer}: no token for {max_idle * LOOK_S:.0f} s")
            self._end(cancel=True)
            self._wake()

    def fail(self, error: BatonError) -> None:
        """End the answer with an error."""
        self._error = error
        self._end(cancel=False)
        self._wake()

    def _expire(self) -> None:
        self._error = DeadlineError(f"{self.peer}: no end within {self._timeout_s:.1f} s")
        self._end(cancel=True)
        self._wake()

    def _end(self, *, cancel: bool) -> None:
        self._timer.cancel()
        self._session.forget(self.answer_id, cancel=cancel)

    def _wake(self) -> None:
        self._take = None
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _fail_reader(self, error: Exception) -> None:
        self._take = None
        if self._reader is not None and not self._reader.done():
            self._reader.set_exception(error)


def _by_answer(
    answer_ids: Sequence[int], token_ids: Sequence[int]
) -> Iterable[tuple[int, list[int]]]:
    """Return the tokens of each answer, in the order of the answers."""
    if len(set(answer_ids)) == len(answer_ids):
        return zip(answer_ids, ([token_id] for token_id in token_ids), strict=False)
    own: dict[int, list[int]] = {}
    for answer_id, token_id in zip(answer_ids, token_ids, strict=False):
        own.setdefault(answer_id, []).append(token_id)
    return own.items()


def _meaning(error: decode_pb2.AnswerError, peer: str) -> BatonError:
    code = _CODES.get(error.code, grpc.StatusCode.UNKNOWN)
    return _not_cancelled(from_status(code, error.message, dict(error.metadata), peer=peer))


def _not_cancelled(error: BatonError) -> BatonError:
    """Return WorkerLostError for a cancellation: the router did not cancel, so the worker is
    ending.
    """
    return WorkerLostError(str(error)) if isinstance(error, RequestCancelledError) else error
