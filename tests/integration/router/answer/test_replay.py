"""A worker is lost in the middle of an answer, and another one goes on where it was."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from baton.v1 import common_pb2, decode_pb2
from services.decode import session
from services.router.answer import pipeline
from services.router.answer.retry import MAX_FRUITLESS
from services.router.request.resume import AnswerSoFar
from services.router.workers import endpoints, sessions
from shared.directory.base import STAGE
from shared.errors import DrainingError, InternalError, InvalidRequestError, WorkerLostError
from shared.identity import Role, WorkerId
from shared.request.answer import FinishReason
from tests.fakes.scripted.decode import Script, ScriptedDecode, Step, never, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.router.conftest import Bench

LOST = Step(error=WorkerLostError("power cut"))


def steps(ids: tuple[int, ...]) -> list[Step]:
    return [Step(token_ids=(i,)) for i in ids]


async def pair(bench: Bench, first: Script, *second: Script) -> list[ScriptedDecode]:
    """Two workers; the first one is asked first, whatever the policy's dice say."""
    workers = [await bench.add_worker(first), await bench.add_worker(*second)]
    other = bench.parts.endpoints.of_role(Role.DECODE)[1]
    other.work.num_decoding += 100
    bench.stack.callback(lambda: setattr(other.work, "num_decoding", 0))
    return workers


async def test_the_rest_comes_from_another_worker_and_the_text_goes_on(bench: Bench) -> None:
    """In the middle of a character, of a stop string and of log probabilities."""
    ids = bench.ids("a🙂 STOP b")
    cut = 3
    lost, other = await pair(bench, Script([*steps(ids[:cut]), LOST]), say(*ids[cut:]))
    answer = await bench.answer(stop=("STOP",), temperature=0.7, seed=5, prompt_logprobs=1)
    assert answer.text() == "a🙂 "
    assert answer.last.stop_string == "STOP"
    num_tokens = len(bench.ids("a🙂 STOP"))
    assert answer.token_ids() == ids[:num_tokens]
    (first,), (second,) = lost.requests, other.requests
    assert tuple(second.token_ids) == (*first.token_ids, *ids[:cut])
    assert second.num_resumed_tokens == cut
    assert second.sampling.seed == first.sampling.seed == 5
    assert (first.request_id, second.request_id) == ("r-0", "r-0.1")
    assert not second.sampling.HasField("prompt_logprobs")
    assert dict(bench.parts.pipeline.replays) == {"lost": 1}
    usage = answer.last.usage
    assert usage is not None
    assert (usage.completion_tokens, usage.num_replays) == (num_tokens, 1)


@pytest.mark.parametrize("n", [1, 3])
async def test_a_worker_that_dies_takes_no_answer_with_it(bench: Bench, n: int) -> None:
    ids = bench.ids("abcd")
    stuck = Script([*steps(ids[:2]), Step(gate=never())])
    rest = say(*ids[2:])
    worker, other = await pair(bench, stuck, rest)
    texts = dict.fromkeys(range(n), "")
    async with aclosing(bench.parts.pipeline.generate(bench.request(n=n))) as pieces:
        async for piece in pieces:
            texts[piece.index] += piece.text
            if list(texts.values()) == ["ab"] * n:
                asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(worker.die()))
            last = piece
    assert list(texts.values()) == ["abcd"] * n
    assert sorted(r.sampling.sample_index for r in other.requests) == list(range(n))
    assert last.usage is not None
    assert (last.usage.completion_tokens, last.usage.num_replays) == (4 * n, n)


async def test_answers_that_have_ended_are_left_alone(bench: Bench) -> None:
    a, b = bench.ids("ab")
    gate = asyncio.Event()
    worker, other = await pair(bench, Script([Step(token_ids=(a,))]), say(b))
    worker.scripts.append(Script([Step(token_ids=(a,)), Step(gate=gate, error=LOST.error)]))
    finished = []
    async with aclosing(bench.parts.pipeline.generate(bench.request(n=2))) as pieces:
        async for piece in pieces:
            gate.set()
            finished += [piece.index] if piece.finish_reason else []
    assert finished == [0, 1]
    assert [r.sampling.sample_index for r in other.requests] == [1]


async def test_an_answer_may_be_lost_again_and_again_as_long_as_it_gets_on(bench: Bench) -> None:
    num_losses = 3 * MAX_FRUITLESS
    ids = bench.ids("abcdefghijk"[: num_losses + 1])
    for _ in range(3):
        worker = await bench.add_worker()
        worker.scripts = [Script([Step(token_ids=(0,)), LOST])]
    text: list[int] = []

    def next_script(request: decode_pb2.DecodeRequest) -> Script:
        given = request.num_resumed_tokens
        text.append(given)
        step = Step(token_ids=(ids[given],))
        return Script([step, LOST]) if given < num_losses else Script([step])

    for worker in bench.workers:
        worker.answer = next_script
    answer = await bench.answer()
    assert answer.token_ids() == ids
    assert text == list(range(num_losses + 1))
    assert answer.last.usage is not None
    assert answer.last.usage.num_replays == num_losses


async def test_what_a_draining_worker_holds_is_fetched_and_not_computed(bench: Bench) -> None:
    prompt = "x" * 40
    ids = bench.ids("abcd")
    draining = Script([*steps(ids[:2]), Step(error=DrainingError("asked to end"))])
    worker, other = await pair(bench, draining, say(*ids[2:]))
    await bench.add_worker(role=Role.PREFILL)
    answer = await bench.answer(text=prompt)
    assert answer.text() == "abcd"
    (request,) = other.requests
    assert not request.prefill_candidates
    (source,) = request.prefix_sources
    assert source.worker.name == worker.name
    assert source.num_blocks == (len(prompt) + 2 - 1) // 16
    assert dict(bench.parts.pipeline.replays) == {"draining": 1}


async def test_who_drains_before_it_began_holds_nothing(bench: Bench) -> None:
    draining = Script([Step(error=DrainingError("no new work"))])
    _, other = await pair(bench, draining, say(*bench.ids("a")))
    await bench.add_worker(role=Role.PREFILL)
    await bench.answer(text="x" * 40)
    (request,) = other.requests
    assert request.prefill_candidates
    assert not request.prefix_sources


async def test_what_is_wrong_with_the_request_is_wrong_everywhere(bench: Bench) -> None:
    error = Step(error=InvalidRequestError("no such thing", param="top_p"))
    _, other = await pair(bench, Script([*steps(bench.ids("a")), error]))
    with pytest.raises(InvalidRequestError):
        await bench.answer()
    assert other.requests == []


async def test_an_error_is_shown_to_one_more_worker_and_no_further(bench: Bench) -> None:
    for _ in range(4):
        await bench.add_worker(Script([Step(error=InternalError("bug"))]))
    with pytest.raises(InternalError):
        await bench.answer()
    assert sum(len(worker.requests) for worker in bench.workers) == 2


async def test_usage_says_what_was_repeated_and_the_sources_stay_the_prompts(bench: Bench) -> None:
    ids = bench.ids("abcd")

    def usage(**fields: int) -> decode_pb2.DecodeResponse:
        recomputed = fields.pop("recomputed_tokens", 0)
        sources = common_pb2.PromptSources(**fields)
        return decode_pb2.DecodeResponse(
            usage=common_pb2.Usage(recomputed_tokens=recomputed, sources=sources),
            timings=common_pb2.Timings(prefill_ms=7 + recomputed),
        )

    first = Step(token_ids=ids[:2], extra=usage(transferred=5))
    rest = Step(token_ids=ids[2:], extra=usage(computed=3, local_hit=2, recomputed_tokens=4))
    await pair(bench, Script([first, LOST]), Script([rest]))
    last = (await bench.answer(text="hello")).last
    assert last.usage is not None
    assert last.timings is not None
    said = last.usage
    assert (said.computed_tokens, said.local_hit_tokens, said.transferred_tokens) == (0, 0, 5)
    assert (said.completion_tokens, said.recomputed_tokens, said.num_replays) == (4, 4, 1)
    assert (last.timings.prefill_ms, last.timings.decode_worker) == (7, "decode-1")
    assert 0 < last.timings.replay_ms < last.timings.total_ms


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Heartbeats come several times a look: what is slow, and lives, is not taken for silent."""
    monkeypatch.setattr(sessions, "LOOK_S", 0.1)
    monkeypatch.setattr(session, "HEARTBEAT_S", 0.02)
    return


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize("bench", [{"stream_stall_s": 0.4}], indirect=True)
async def test_an_answer_that_stalls_goes_on_elsewhere_and_is_cancelled(bench: Bench) -> None:
    ids = bench.ids("ab")
    worker, _ = await pair(bench, Script([*steps(ids[:1]), Step(gate=never())]), say(ids[1]))
    assert (await bench.answer()).text() == "ab"
    await worker.wait_cancelled()
    assert dict(bench.parts.pipeline.replays) == {"silent": 1}


@pytest.mark.usefixtures("quick_looks")
async def test_a_worker_that_says_nothing_at_all_is_lost(bench: Bench) -> None:
    """Its connection stands, as that of a process that was stopped; even a first token waits."""
    worker, other = await pair(bench, Script([Step(gate=never())]), say(*bench.ids("ab")))
    worker.heartbeats = False
    assert (await bench.answer()).text() == "ab"
    assert len(other.requests) == 1
    assert dict(bench.parts.pipeline.replays) == {"silent": 1}


async def test_a_client_goes_on_with_what_another_router_gave(bench: Bench) -> None:
    ids = bench.ids("a🙂 STOP b")
    cut = 3
    worker = await bench.add_worker(say(*ids[cut:]))
    request = bench.request(stop=("STOP",), seed=1)
    request = replace(request, resumed=(AnswerSoFar(index=0, token_ids=ids[:cut]),))
    answer = await bench.answer(request)
    before = "a"
    assert before + answer.text() == "a🙂 "
    assert answer.last.finish_reason is FinishReason.STOP
    (sent,) = worker.requests
    assert sent.num_resumed_tokens == cut
    assert answer.last.usage is not None
    assert answer.last.usage.completion_tokens == len(bench.ids("a🙂 STOP"))


async def test_of_several_answers_only_what_is_missing_is_asked_for(bench: Bench) -> None:
    a, b, c = bench.ids("abc")
    worker = await bench.add_worker(say(c))
    resumed = (
        AnswerSoFar(index=0, token_ids=(a, b), finished=True),
        AnswerSoFar(index=2, token_ids=(a,)),
    )
    answer = await bench.answer(replace(bench.request(n=3, seed=1), resumed=resumed))
    assert [(p.index, p.text) for p in answer.pieces] == [(1, "c"), (2, "c")]
    assert [r.num_resumed_tokens for r in worker.requests] == [0, 1]
    assert answer.last.usage is not None
    assert answer.last.usage.completion_tokens == 5


@pytest.mark.parametrize(
    "resumed",
    [
        [AnswerSoFar(index=1)],
        [AnswerSoFar(index=0), AnswerSoFar(index=0)],
        [AnswerSoFar(index=0, finished=True)],
        [AnswerSoFar(index=0, token_ids=(2**31,))],
        [AnswerSoFar(index=0, token_ids=(70, 70, 70, 70))],
        [AnswerSoFar(index=0, token_ids=(70,) * 5, finished=True)],
    ],
)
async def test_beginnings_that_cannot_be_are_refused(
    bench: Bench, resumed: list[AnswerSoFar]
) -> None:
    worker = await bench.add_worker()
    request = replace(bench.request(max_tokens=4), resumed=tuple(resumed))
    with pytest.raises(InvalidRequestError) as caught:
        await bench.answer(request)
    assert caught.value.param == "resume_from"
    assert worker.requests == []


async def test_a_beginning_with_a_stop_string_has_ended(bench: Bench) -> None:
    await bench.add_worker()
    request = bench.request(stop=("b",), max_tokens=9)
    request = replace(request, resumed=(AnswerSoFar(index=0, token_ids=bench.ids("ab")),))
    with pytest.raises(InvalidRequestError, match="stop string"):
        await bench.answer(request)


async def test_wherever_workers_are_lost_the_answer_is_the_same(bench: Bench) -> None:
    """Random cuts on four workers; nothing is left over on the router."""
    rng = random.Random(3)
    ids = bench.ids("The quick 🙂 brown fox jumps over 20 lazy dogs.")
    for _ in range(4):
        worker = await bench.add_worker()

        def script(request: decode_pb2.DecodeRequest) -> Script:
            rest = ids[request.num_resumed_tokens :]
            cut = rng.randrange(15, 60)
            chunks = [rest[i : i + 3] for i in range(0, min(cut, len(rest)), 3)]
            said = [Step(token_ids=chunk) for chunk in chunks]
            whole = sum(map(len, chunks)) == len(rest)
            return Script(said) if whole else Script([*said, LOST])

        worker.answer = script
    answers = await asyncio.gather(*(bench.answer(n=1 + i % 3) for i in range(12)))
    for i, answer in enumerate(answers):
        for index in range(1 + i % 3):
            assert answer.token_ids(index) == ids
            assert answer.text(index) == "The quick 🙂 brown fox jumps over 20 lazy dogs."
    assert bench.parts.pipeline.replays["lost"] > 12


async def test_an_answer_that_sleep_interrupts_waits_for_the_workers_to_wake_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of another router, which did not order it."""
    monkeypatch.setattr(pipeline, "WAIT_FOR_WORKER_S", 0.1)
    monkeypatch.setattr(endpoints, "RETURN_S", 0.0)
    ids = bench.ids("abcd")
    worker = await bench.add_worker(Script([*steps(ids[:2]), Step(gate=never())]))
    registry, pool = bench.parts.registry, bench.parts.endpoints
    asking = asyncio.create_task(bench.answer())
    await worker.wait_requests(1)
    asleep = replace(worker.record, worker=WorkerId.born("asleep"), labels={STAGE: "asleep"})
    await registry.register(asleep, 60)
    await registry.deregister(worker.record.worker)
    async with asyncio.timeout(10):
        await pool.wait_until(lambda: pool.is_asleep)
    await worker.die()
    await asyncio.sleep(0.4)
    assert not asking.done()
    await bench.add_worker(say(*ids[2:]))
    assert (await asking).token_ids() == ids
