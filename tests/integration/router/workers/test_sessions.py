"""Many answers over one call, between a real client and a real server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import common_pb2, decode_pb2, decode_pb2_grpc
from services.router.workers.sessions import SessionPool
from shared.errors import DeadlineError, InvalidRequestError, WorkerLostError
from shared.rpc.channel import ChannelPool
from tests.fakes.scripted.decode import Script, ScriptedDecode, Step, never, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.router.workers.sessions import AnswerCall


@asynccontextmanager
async def opened(*scripts: Script) -> AsyncIterator[tuple[ScriptedDecode, SessionPool]]:
    worker = ScriptedDecode(scripts=list(scripts))
    await worker.start()
    channels = ChannelPool()
    sessions = SessionPool(channels)
    try:
        yield worker, sessions
    finally:
        await sessions.close()
        await channels.close()
        await worker.die()


def ask(
    worker: ScriptedDecode, sessions: SessionPool, name: str = "r", timeout_s: float = 20
) -> AnswerCall:
    request = decode_pb2.DecodeRequest(request_id=name, token_ids=[1])
    return sessions.start(worker.record.address, request, timeout_s=timeout_s, peer="the worker")


async def read_all(answer: AnswerCall) -> list[int]:
    tokens: list[int] = []
    while True:
        for piece in await answer.read():
            tokens += piece.token_ids
            if piece.finish_reason:
                return tokens


async def test_answers_of_one_session_do_not_mix() -> None:
    scripts = [say(*range(first, first + 20)) for first in range(100, 400, 100)]
    async with opened(*scripts) as (worker, sessions):
        answers = [ask(worker, sessions, str(number)) for number in range(3)]
        got = await asyncio.gather(*map(read_all, answers))
        assert got == [list(range(first, first + 20)) for first in range(100, 400, 100)]


async def test_cancelling_one_answer_leaves_the_others_alone() -> None:
    gate = asyncio.Event()
    stuck = Script([Step(token_ids=(7,)), Step(gate=never())])
    async with opened(stuck, Script([Step(token_ids=(8,), gate=gate)])) as (worker, sessions):
        first = ask(worker, sessions, "first")
        await first.read()
        second = ask(worker, sessions, "second")
        await worker.wait_requests(2)
        first.cancel()
        await worker.wait_cancelled()
        assert worker.cancelled == ["first"]
        gate.set()
        assert await read_all(second) == [8]


async def test_an_error_ends_one_answer_with_its_class_and_parameter() -> None:
    wrong = Script([Step(token_ids=(7,)), Step(error=InvalidRequestError("no", param="top_p"))])
    async with opened(wrong, say(8)) as (worker, sessions):
        answer = ask(worker, sessions)
        (piece,) = await answer.read()
        assert list(piece.token_ids) == [7]
        with pytest.raises(InvalidRequestError, match="the worker: no") as caught:
            await answer.read()
        assert caught.value.param == "top_p"
        assert await read_all(ask(worker, sessions)) == [8]


async def test_an_answer_that_takes_too_long_is_cancelled() -> None:
    async with opened(Script([Step(gate=never())])) as (worker, sessions):
        with pytest.raises(DeadlineError, match="the worker"):
            await ask(worker, sessions, timeout_s=0.05).read()
        await worker.wait_cancelled()


async def test_when_the_router_goes_all_its_answers_are_cancelled() -> None:
    async with opened(Script([Step(gate=never())])) as (worker, sessions):
        for number in range(3):
            ask(worker, sessions, str(number))
        await worker.wait_requests(3)
        await sessions.close()
        await worker.wait_cancelled(3)
        await worker.wait_idle()


async def test_when_the_worker_goes_all_its_answers_fail() -> None:
    async with opened(Script([Step(gate=never())])) as (worker, sessions):
        answers = [ask(worker, sessions, str(number)) for number in range(3)]
        await worker.wait_requests(3)
        await worker.die()
        for answer in answers:
            with pytest.raises(WorkerLostError, match="the worker"):
                await answer.read()


async def test_a_broken_session_is_followed_by_a_new_one() -> None:
    async with opened(say(5)) as (worker, sessions):
        assert await read_all(ask(worker, sessions)) == [5]
        await sessions.drop(worker.record.address)
        assert await read_all(ask(worker, sessions)) == [5]


async def test_prompts_and_answers_larger_than_a_message_pass() -> None:
    """Pieces are put together to messages only as far as messages may grow."""
    large = tuple(range(100_000, 400_000))
    async with opened(Script([Step(token_ids=large) for _ in range(20)])) as (worker, sessions):
        assert len(await read_all(ask(worker, sessions))) == 20 * len(large)


async def test_an_id_that_is_in_use_ends_the_session() -> None:
    async with opened(Script([Step(gate=never())])) as (worker, _):
        channels = ChannelPool()
        channel = channels.get(worker.record.address)
        stub: decode_pb2_grpc.DecodeAsyncStub = decode_pb2_grpc.DecodeStub(channel)
        call = stub.Session()
        for _ in range(2):
            start = decode_pb2.DecodeRequest(request_id="r")
            await call.write(decode_pb2.SessionRequest(answer_id=1, start=start))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            _ = [response async for response in call]
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await worker.wait_cancelled()
        await channels.close()


async def test_what_a_late_reader_has_not_read_is_kept_as_little() -> None:
    """A client that does not read must not keep every message of the session alive."""
    usage = common_pb2.Usage(prompt_tokens=1, completion_tokens=500)
    script = say(*range(100, 600), usage=usage)
    async with opened(script) as (worker, sessions):
        answer = ask(worker, sessions)
        while not (answer._pieces and answer._pieces[-1].finish_reason):  # noqa: ASYNC110 no event
            await asyncio.sleep(0.001)
        pieces = await answer.read()
        assert len(pieces) == 2
        assert [token for piece in pieces for token in piece.token_ids] == list(range(100, 600))
        assert pieces[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert pieces[-1].usage == usage
