"""The client against a real server: answers, streams, deadlines, cancellation, retries."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import grpc
import pytest

from baton_client import (
    AsyncBaton,
    DeadlineError,
    FinishReason,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
    RequestCancelledError,
    RetryPolicy,
    UnavailableError,
)
from tests.fakes.scripted.router import MODEL, WORDS, fails, hangs, plays, tells

if TYPE_CHECKING:
    from tests.fakes.scripted.router import ScriptedRouter

Code = grpc.StatusCode
SOON_S = 5.0


async def test_a_whole_answer(client: AsyncBaton) -> None:
    whole = await client.generate("What?", max_tokens=4, temperature=0)
    assert whole.text == "".join(WORDS)
    assert whole.finish_reason is FinishReason.STOP
    assert whole.answers[0].token_ids == (0, 1, 2, 3)
    assert whole.usage.completion_tokens == 4
    assert whole.usage.sources.transferred_hit == 4
    assert whole.timings.connector == "shm"


async def test_the_request_arrives_as_it_was_made(
    client: AsyncBaton, router: ScriptedRouter
) -> None:
    await client.chat("Hi", model="m", request_id="r1", priority=-2, seed=7, stop=["x"])
    [request] = router.requests
    assert (request.model, request.request_id, request.priority) == ("m", "r1", -2)
    assert [(m.role, m.content) for m in request.messages] == [("user", "Hi")]
    assert request.params.seed == 7
    assert list(request.params.stop) == ["x"]


async def test_an_answer_arrives_piece_by_piece(client: AsyncBaton) -> None:
    texts = [piece.text async for piece in client.stream_generate("What?")]
    assert texts == list(WORDS)


async def test_several_answers(client: AsyncBaton, router: ScriptedRouter) -> None:
    router.scripts.append(tells(["a", "b"], num_answers=3))
    whole = await client.generate("What?", n=3)
    assert [answer.text for answer in whole.answers] == ["ab"] * 3


async def test_models_and_the_api_key(address: str, router: ScriptedRouter) -> None:
    async with AsyncBaton(address, api_key="sesame") as client:
        [model] = await client.models()
    assert (model.id, model.max_model_len) == (MODEL, 2048)
    assert router.metadata[0]["authorization"] == "Bearer sesame"


async def test_an_error_keeps_its_status_and_parameter(
    client: AsyncBaton, router: ScriptedRouter
) -> None:
    router.scripts.append(
        fails(Code.INVALID_ARGUMENT, "too hot", baton_error="X", baton_param="temperature")
    )
    with pytest.raises(InvalidRequestError, match="too hot") as caught:
        await client.generate("What?", request_id="r1")
    assert caught.value.param == "temperature"
    assert caught.value.status is Code.INVALID_ARGUMENT
    assert caught.value.request_id == "r1"


@pytest.mark.parametrize("status", [Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED])
async def test_a_refusal_is_repeated_until_it_works(
    client: AsyncBaton, router: ScriptedRouter, status: Code
) -> None:
    router.scripts += [fails(status, baton_retry_after_s="0.01")] * 2
    assert (await client.generate("What?")).text == "".join(WORDS)
    assert len(router.requests) == 3


async def test_attempts_end(client: AsyncBaton, router: ScriptedRouter) -> None:
    router.scripts += [fails(Code.UNAVAILABLE)] * 9
    with pytest.raises(UnavailableError):
        await client.generate("What?")
    assert len(router.requests) == 3


async def test_advice_to_wait_long_is_handed_to_the_caller(
    client: AsyncBaton, router: ScriptedRouter
) -> None:
    router.scripts.append(
        fails(Code.RESOURCE_EXHAUSTED, baton_error="OverloadedError", baton_retry_after_s="30")
    )
    with pytest.raises(OverloadedError) as caught:
        await client.generate("What?")
    assert caught.value.retry_after_s == 30
    assert len(router.requests) == 1


async def test_what_can_never_fit_is_not_repeated(
    client: AsyncBaton, router: ScriptedRouter
) -> None:
    router.scripts.append(fails(Code.RESOURCE_EXHAUSTED, baton_error="PayloadTooLargeError"))
    with pytest.raises(PayloadTooLargeError):
        await client.generate("What?")
    assert len(router.requests) == 1


async def test_nothing_is_repeated_once_a_piece_was_seen(
    client: AsyncBaton, router: ScriptedRouter
) -> None:
    router.scripts.append(fails(Code.UNAVAILABLE, after=["The "]))
    stream = client.stream_generate("What?")
    assert (await anext(stream)).text == "The "
    with pytest.raises(UnavailableError):
        await anext(stream)
    assert [piece async for piece in stream] == []
    assert len(router.requests) == 1


async def test_a_deadline_ends_the_request_on_the_server_too(
    client: AsyncBaton, router: ScriptedRouter
) -> None:
    router.scripts.append(hangs(after=["The "]))
    with pytest.raises(DeadlineError):
        await client.generate("What?", timeout_s=0.2)
    await asyncio.wait_for(router.cancelled.wait(), SOON_S)


async def test_retries_do_not_stretch_the_deadline(address: str, router: ScriptedRouter) -> None:
    policy = RetryPolicy(max_attempts=1000, base_delay_s=0.05, max_delay_s=0.05)
    router.scripts += [fails(Code.UNAVAILABLE)] * 1000
    async with AsyncBaton(address, retry=policy) as client, asyncio.timeout(SOON_S):
        # The deadline is the last attempt's, too, if there was time for one more.
        with pytest.raises((UnavailableError, DeadlineError)):
            await client.generate("What?", timeout_s=0.3)


async def test_closing_the_iterator_cancels_the_request(
    client: AsyncBaton, router: ScriptedRouter
) -> None:
    router.scripts.append(hangs(after=["The "]))
    async with client.stream_generate("What?") as stream:
        await anext(stream)
    await asyncio.wait_for(router.cancelled.wait(), SOON_S)


async def test_cancelling_the_task_cancels_the_request(
    client: AsyncBaton, router: ScriptedRouter
) -> None:
    router.scripts.append(hangs(after=["The "]))
    stream = client.stream_generate("What?")
    await anext(stream)
    task = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(router.cancelled.wait(), SOON_S)


async def test_closing_while_another_task_reads_wakes_it(
    client: AsyncBaton, router: ScriptedRouter
) -> None:
    router.scripts.append(hangs(after=["The "]))
    stream = client.stream_generate("What?")
    await anext(stream)
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await stream.aclose()
    with pytest.raises(RequestCancelledError, match="closed while it was read"):
        await asyncio.wait_for(reader, SOON_S)


async def test_forgetting_the_iterator_cancels_the_request(
    client: AsyncBaton, router: ScriptedRouter
) -> None:
    router.scripts.append(hangs(after=["The "]))
    async for _ in client.stream_generate("What?"):
        break
    gc.collect()
    await asyncio.wait_for(router.cancelled.wait(), SOON_S)


async def test_a_server_that_is_not_there() -> None:
    async with AsyncBaton("127.0.0.1:1", retry=RetryPolicy(max_attempts=2)) as client:
        with pytest.raises(UnavailableError):
            await client.models(timeout_s=SOON_S)


async def test_an_answer_that_breaks_off_without_an_error(
    client: AsyncBaton, router: ScriptedRouter
) -> None:
    router.scripts.append(plays())
    with pytest.raises(InternalError, match="without an answer"):
        await client.generate("What?")


async def test_a_closed_client_says_so(address: str) -> None:
    client = AsyncBaton(address)
    await client.close()
    await client.close()
    with pytest.raises(UnavailableError, match="closed"):
        await client.generate("What?")


async def test_many_requests_share_one_client(client: AsyncBaton) -> None:
    wholes = await asyncio.gather(*(client.generate(str(i)) for i in range(32)))
    assert {whole.text for whole in wholes} == {"".join(WORDS)}
