"""A router is lost in the middle of an answer: the client goes on at another one."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from baton.v1 import common_pb2, router_pb2
from baton_client import (
    AsyncBaton,
    Baton,
    BatonError,
    DeadlineError,
    FinishReason,
    InternalError,
    PartialAnswer,
    UnavailableError,
    UnsupportedError,
)
from tests.fakes.scripted.router import ScriptedRouter, serve
from tests.integration.client.conftest import FAST_RETRY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.scripted.router import Script

WORDS = ("The ", "baton ", "is ", "passed.")
Code = grpc.StatusCode


@asynccontextmanager
async def routers(*scripts: list[Script]) -> AsyncIterator[tuple[list[ScriptedRouter], list[str]]]:
    """One per list."""
    made = [ScriptedRouter() for _ in scripts]
    servers = []
    for router, own in zip(made, scripts, strict=True):
        router.scripts.extend(own)
        servers.append(await serve(router, "127.0.0.1:0"))
    try:
        yield made, [f"127.0.0.1:{port}" for _, port in servers]
    finally:
        for server, _ in servers:
            await server.stop(None)


def goes_on(*, until: int | None = None, error: Code | None = None, honest: bool = True) -> Script:
    """Gives WORDS, each as one token and for every answer, behind what the client has."""

    async def script(request: Any, context: Any) -> AsyncIterator[router_pb2.GenerateResponse]:
        had = {answer.index: answer for answer in request.resume_from}
        for index in range(request.params.n or 1):
            before = had.get(index)
            if before is not None and before.finished:
                continue
            start = len(before.token_ids) if before is not None and honest else 0
            for number in range(start, len(WORDS))[:until]:
                piece = router_pb2.GenerateResponse(
                    request_id=request.request_id,
                    index=index,
                    text=WORDS[number],
                    token_ids=[number],
                    resumed=bool(had) and honest,
                    identity="" if number > start else "ab12",
                )
                if number == len(WORDS) - 1:
                    piece.finish_reason = common_pb2.FINISH_REASON_STOP
                yield piece
        if error is not None:
            await context.abort(error, "by script")

    return script


@pytest.mark.parametrize("lost", [Code.UNAVAILABLE, Code.CANCELLED])
async def test_the_rest_comes_from_the_next_router(lost: Code) -> None:
    async with (
        routers([goes_on(until=2, error=lost)], [goes_on()]) as (made, addresses),
        AsyncBaton(addresses, retry=FAST_RETRY) as client,
    ):
        whole = await client.chat("What?", temperature=0.8)
    assert whole.text == "".join(WORDS)
    assert whole.answers[0].token_ids == (0, 1, 2, 3)
    first, second = made[0].requests[0], made[1].requests[0]
    assert first.request_id == second.request_id != ""
    assert first.params.seed == second.params.seed
    assert first.params.HasField("seed")
    assert not first.resume_from
    assert [(a.index, list(a.token_ids)) for a in second.resume_from] == [(0, [0, 1])]
    assert [a.identity for a in second.resume_from] == ["ab12"]


async def test_a_router_that_ends_before_it_has_looked_at_a_request_costs_nothing() -> None:
    """What waits in a server that shuts down, gRPC cancels without asking it."""
    async with (
        routers([goes_on(until=0, error=Code.CANCELLED)], [goes_on()]) as (made, addresses),
        AsyncBaton(addresses, retry=FAST_RETRY) as client,
    ):
        whole = await client.chat("What?", temperature=0.8)
    assert whole.text == "".join(WORDS)
    assert not made[1].requests[0].resume_from


async def test_what_has_ended_is_not_asked_for_again() -> None:
    scripts = [goes_on(error=Code.UNAVAILABLE)], [goes_on()]
    async with routers(*scripts) as (made, addresses):
        made[0].scripts[0] = two_answers_and_lost
        async with AsyncBaton(addresses, retry=FAST_RETRY) as client:
            whole = await client.generate("What?", n=2)
    assert [answer.text for answer in whole.answers] == ["".join(WORDS)] * 2
    resumed = made[1].requests[0].resume_from
    assert [(a.index, len(a.token_ids), a.finished) for a in resumed] == [
        (0, 4, True),
        (1, 1, False),
    ]


async def two_answers_and_lost(
    request: Any, context: Any
) -> AsyncIterator[router_pb2.GenerateResponse]:
    """All of answer 0 and a token of answer 1."""
    for number, word in enumerate(WORDS):
        reason = common_pb2.FINISH_REASON_STOP if number == 3 else 0
        yield router_pb2.GenerateResponse(text=word, token_ids=[number], finish_reason=reason)
    yield router_pb2.GenerateResponse(index=1, text=WORDS[0], token_ids=[0])
    await context.abort(Code.UNAVAILABLE, "by script")


async def test_when_all_has_come_the_end_of_the_call_does_not_matter() -> None:
    async with (
        routers([goes_on(error=Code.UNAVAILABLE)]) as (made, addresses),
        AsyncBaton(addresses, retry=FAST_RETRY) as client,
    ):
        assert (await client.generate("What?")).text == "".join(WORDS)
    assert len(made[0].requests) == 1


async def test_where_nobody_can_go_on_the_error_is_exactly_what_came() -> None:
    lost = [goes_on(until=1, error=Code.UNAVAILABLE) for _ in range(5)]
    async with (
        routers(lost[:3], lost[3:]) as (made, addresses),
        AsyncBaton(addresses, retry=FAST_RETRY) as client,
    ):
        with pytest.raises(UnavailableError) as caught:
            await client.generate("What?", request_id="r1")
    num = sum(len(router.requests) for router in made)
    assert num == FAST_RETRY.max_attempts
    [answer] = caught.value.received
    text = "".join(WORDS[:num])
    assert answer == PartialAnswer(
        index=0, text=text, content=text, token_ids=tuple(range(num)), finish_reason=None
    )
    assert caught.value.request_id == "r1"


@pytest.mark.parametrize(
    ("error", "raised"), [(Code.INTERNAL, InternalError), (Code.DEADLINE_EXCEEDED, DeadlineError)]
)
async def test_what_would_fail_again_is_not_asked_again(
    error: Code, raised: type[BatonError]
) -> None:
    async with (
        routers([goes_on(until=2, error=error)], []) as (made, addresses),
        AsyncBaton(addresses, retry=FAST_RETRY) as client,
    ):
        with pytest.raises(raised) as caught:
            await client.generate("What?")
    assert caught.value.received[0].text == "The baton "
    assert made[1].requests == []


async def test_a_server_that_would_begin_again_is_not_believed() -> None:
    scripts = [goes_on(until=2, error=Code.UNAVAILABLE)], [goes_on(honest=False)]
    async with (
        routers(*scripts) as (_, addresses),
        AsyncBaton(addresses, retry=FAST_RETRY) as client,
    ):
        with pytest.raises(UnavailableError, match="cannot continue it") as caught:
            await client.generate("What?")
    assert caught.value.received[0].text == "The baton "
    assert caught.value.received[0].token_ids == (0, 1)


async def test_a_router_that_is_gone_is_not_asked_first_again() -> None:
    async with (
        routers([goes_on()]) as (made, addresses),
        AsyncBaton(["127.0.0.1:1", *addresses], retry=FAST_RETRY) as client,
    ):
        for _ in range(3):
            assert (await client.generate("What?")).finish_reason is FinishReason.STOP
        assert (await client.models())[0].max_model_len == 2048
    assert len(made[0].requests) == 3


async def test_the_blocking_client_goes_on_as_well() -> None:
    def ask(addresses: list[str]) -> str:
        with (
            Baton(addresses, retry=FAST_RETRY) as client,
            client.stream_generate("What?") as pieces,
        ):
            return "".join(piece.text for piece in pieces)

    async with routers([goes_on(until=3, error=Code.UNAVAILABLE)], [goes_on()]) as (_, addresses):
        assert await asyncio.to_thread(ask, addresses) == "".join(WORDS)


def test_a_client_needs_an_address() -> None:
    with pytest.raises(BatonError, match="address"):
        AsyncBaton([])


async def test_a_server_too_old_for_tools_is_noticed() -> None:
    """It would answer as if there were none."""
    tool: Any = {"type": "function", "function": {"name": "f"}}
    old = [goes_on(), goes_on()]
    async with routers(old) as (_, [address]), AsyncBaton(address) as client:
        assert (await client.chat("x")).content == "".join(WORDS)
        with pytest.raises(UnsupportedError, match="too old") as caught:
            await client.chat("x", tools=[tool])
    assert caught.value.param == "tools"
