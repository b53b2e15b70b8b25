"""The pipeline against real gRPC servers that answer by script."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from baton.v1 import common_pb2, decode_pb2
from shared.identity import Role
from shared.request.answer import FinishReason
from tests.fakes.processes.call_threads import threads_of
from tests.fakes.scripted.decode import Script, Step, never, one_by_one, say

if TYPE_CHECKING:
    from tests.integration.router.conftest import Bench

EOS = 0


async def test_text_streams_piece_by_piece(bench: Bench) -> None:
    script, gates = one_by_one(say(*bench.ids("abc")))
    worker = await bench.add_worker(script)
    answer = await bench.answer(gates=gates)
    assert worker.cancelled == []
    assert [p.text for p in answer.pieces] == ["a", "b", "c"]
    assert answer.token_ids() == bench.ids("abc")
    assert answer.last.finish_reason is FinishReason.LENGTH


async def test_a_step_with_several_tokens_is_one_piece(bench: Bench) -> None:
    script, gates = one_by_one(say(*bench.ids("abcd"), per_step=2))
    await bench.add_worker(script)
    answer = await bench.answer(gates=gates)
    assert [p.text for p in answer.pieces] == ["ab", "cd"]


@pytest.mark.parametrize("bench", [{"stream_interval": 3}], indirect=True)
async def test_pieces_are_as_long_as_the_operator_or_the_client_says(bench: Bench) -> None:
    text = "abcdefghijklmnop"
    await bench.add_worker(say(*bench.ids(text)))
    for asked, least in ((None, 3), (2, 3), (5, 5)):
        answer = await bench.answer(bench.request(stream_interval=asked))
        assert answer.text() == text
        lengths = [len(piece.token_ids) for piece in answer.pieces]
        assert all(length >= least for length in lengths[1:-1]), lengths
        assert len(lengths) <= 2 + (len(text) - 1) // least


async def test_steps_that_came_while_the_reader_was_busy_are_one_piece(bench: Bench) -> None:
    gate = asyncio.Event()
    early, late = (common_pb2.Usage(prompt_tokens=5, cached_tokens=n) for n in (4, 0))
    script = Script(
        [
            Step(token_ids=bench.ids("a"), extra=decode_pb2.DecodeResponse(usage=early)),
            *(Step(token_ids=bench.ids(char), gate=gate) for char in "bc"),
            Step(token_ids=bench.ids("d")),
        ],
        usage=late,
    )
    await bench.add_worker(script, say(*bench.ids("z")))
    pieces = []
    async with aclosing(bench.parts.pipeline.generate(bench.request())) as stream:
        async for piece in stream:
            pieces.append(piece)
            gate.set()
            # Its answer follows the rest of this one on the same connection.
            assert (await bench.answer()).text() == "z"
    assert [(p.text, len(p.token_ids)) for p in pieces] == [("a", 1), ("bcd", 3)]
    assert pieces[-1].finish_reason is FinishReason.LENGTH
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.cached_tokens == 0


async def test_a_character_in_two_tokens_comes_whole(bench: Bench) -> None:
    ids = bench.ids("🙂!")
    script, gates = one_by_one(say(*ids))
    await bench.add_worker(script)
    answer = await bench.answer(gates=gates)
    assert len(answer.pieces) == len(ids) > 2
    assert [p.text for p in answer.pieces if p.text] == ["🙂", "!"]
    assert answer.token_ids() == ids


async def test_the_end_token_is_counted_and_not_shown(bench: Bench) -> None:
    script = say(*bench.ids("ab"), EOS, finish=common_pb2.FINISH_REASON_STOP, stop_token_id=EOS)
    await bench.add_worker(script)
    answer = await bench.answer()
    assert answer.text() == "ab"
    assert answer.last.finish_reason is FinishReason.STOP
    assert answer.last.stop_token_id is None
    assert answer.last.usage is not None
    assert answer.last.usage.completion_tokens == 3


@pytest.mark.parametrize("per_step", [1, 2, 8])
async def test_a_stop_string_over_several_tokens_ends_and_cancels(
    bench: Bench, per_step: int
) -> None:
    ids = bench.ids("one STOP two")
    script = Script(
        [
            *(Step(token_ids=ids[i : i + per_step]) for i in range(0, len(ids), per_step)),
            Step(gate=never()),
        ]
    )
    worker = await bench.add_worker(script)
    answer = await bench.answer(stop=("STOP",))
    assert answer.text() == "one "
    assert answer.last.finish_reason is FinishReason.STOP
    assert answer.last.stop_string == "STOP"
    assert answer.last.usage is not None
    assert answer.last.usage.completion_tokens == 8
    assert answer.token_ids() == ids[:8]
    await worker.wait_cancelled()


async def test_a_stop_string_can_be_kept(bench: Bench) -> None:
    await bench.add_worker(say(*bench.ids("one STOP two")))
    answer = await bench.answer(stop=("STOP",), include_stop_str_in_output=True)
    assert answer.text() == "one STOP"


async def test_stop_strings_wait_for_min_tokens(bench: Bench) -> None:
    await bench.add_worker(say(*bench.ids("a.b.c.")))
    answer = await bench.answer(stop=(".",), min_tokens=3, max_tokens=6)
    assert answer.text() == "a.b"


async def test_the_wire_carries_what_was_asked_for(bench: Bench) -> None:
    worker = await bench.add_worker()
    request = replace(
        bench.request(temperature=0.0, max_tokens=9, seed=7, logit_bias={3: 1.0}),
        priority=-2,
        cache_salt=b"tenant",
    )
    await bench.answer(request)
    (sent,) = worker.requests
    assert sent.request_id == "r-0"
    assert tuple(sent.token_ids) == request.prompt_token_ids
    assert (sent.priority, sent.cache_salt) == (-2, b"tenant")
    assert (sent.sampling.max_tokens, sent.sampling.seed) == (9, 7)
    assert list(sent.sampling.eos_token_ids) == [EOS]
    assert not sent.prefill_candidates


async def test_prefill_workers_are_proposed(bench: Bench) -> None:
    prefill = await bench.add_worker(role=Role.PREFILL)
    decode = await bench.add_worker()
    await bench.answer()
    (candidate,) = decode.requests[0].prefill_candidates
    assert candidate.address == prefill.record.address
    assert candidate.worker.incarnation == prefill.record.worker.incarnation
    assert prefill.requests == []


async def test_usage_and_timings_are_the_workers_and_the_routers(bench: Bench) -> None:
    script = say(*bench.ids("ab"))
    script.usage = common_pb2.Usage(
        prompt_tokens=5,
        completion_tokens=2,
        cached_tokens=4,
        sources=common_pb2.PromptSources(computed=1, local_hit=1, transferred=3, transferred_hit=3),
    )
    script.timings = common_pb2.Timings(
        decode_queue_ms=3, prefill_ms=7, transfer_bytes=99, connector="shm", prefill_worker="p"
    )
    await bench.add_worker(script)
    answer = await bench.answer(text="hello")
    usage, timings = answer.last.usage, answer.last.timings
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (5, 2, 4)
    assert (usage.computed_tokens, usage.local_hit_tokens) == (1, 1)
    assert (usage.transferred_tokens, usage.transferred_hit_tokens) == (3, 3)
    assert timings is not None
    assert (timings.decode_queue_ms, timings.prefill_ms, timings.connector) == (3, 7, "shm")
    assert (timings.decode_worker, timings.prefill_worker) == ("decode-0", "p")
    assert (timings.tokenize_ms, timings.transfer_bytes) == (1.5, 99)
    assert 0 < timings.first_token_ms <= timings.total_ms
    assert timings.route_ms > 0
    assert all(piece.usage is None for piece in answer.pieces[:-1])


async def test_logprobs_come_with_texts_and_bytes(bench: Bench) -> None:
    half = bench.ids("🙂")[0]
    (a,) = bench.ids("a")
    position = common_pb2.PositionLogprobs(
        chosen=common_pb2.TokenLogprob(token_id=a, logprob=-0.5, rank=1),
        top=[common_pb2.TokenLogprob(token_id=half, logprob=-0.75, rank=2)],
    )
    prompt = common_pb2.PromptLogprobs(positions=[common_pb2.PositionLogprobs(), position])
    extra = decode_pb2.DecodeResponse(logprobs=[position], prompt_logprobs=prompt)
    await bench.add_worker(Script([Step(token_ids=(a,), extra=extra)]))
    answer = await bench.answer(logprobs=1, prompt_logprobs=1)
    (detail,) = answer.last.details
    assert (detail.chosen.text, detail.chosen.utf8, detail.chosen.logprob) == ("a", b"a", -0.5)
    assert detail.top[0].text == "\ufffd"
    assert detail.top[0].utf8 == bench.parts.tokenizer.token_bytes(half)
    assert answer.last.prompt_details is not None
    assert answer.last.prompt_details[0] is None
    assert answer.last.prompt_details[1] == detail


async def test_log_probabilities_of_a_long_prompt_are_read_in_a_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = common_pb2.PositionLogprobs(
        chosen=common_pb2.TokenLogprob(token_id=5, logprob=-0.5, rank=1),
        top=[common_pb2.TokenLogprob(token_id=5, logprob=-0.5, rank=1)] * 20,
    )
    prompt = common_pb2.PromptLogprobs(positions=[common_pb2.PositionLogprobs(), *[position] * 99])
    extra = decode_pb2.DecodeResponse(prompt_logprobs=prompt)
    await bench.add_worker(Script([Step(token_ids=(5,), extra=extra)]))
    threads = threads_of(monkeypatch, "services.router.answer.stream.prompt_details")
    answer = await bench.answer(prompt_logprobs=20)
    assert len(answer.last.prompt_details or ()) == 100
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("prefill", [False, True])
async def test_the_others_of_n_start_when_the_prompt_is_computed(
    bench: Bench, prefill: bool
) -> None:
    gate = asyncio.Event()
    a, b = bench.ids("ab")
    leader = Script([Step(token_ids=(a,)), Step(token_ids=(b,)), Step(token_ids=(a,), gate=gate)])
    if prefill:
        await bench.add_worker(role=Role.PREFILL)
    worker = await bench.add_worker(leader, say(b))
    other = await bench.add_worker()
    other_book = bench.parts.endpoints.of_role(Role.DECODE)[1]
    other_book.work.num_decoding += 100
    texts = {0: "", 1: "", 2: ""}
    num_tokens_before_others = 0
    last = None
    async with aclosing(bench.parts.pipeline.generate(bench.request(n=3, seed=1))) as pieces:
        async for piece in pieces:
            texts[piece.index] += piece.text
            last = piece
            if piece.index == 0 and len(worker.requests) == 1:
                num_tokens_before_others += len(piece.token_ids)
            if texts[1] and texts[2]:
                gate.set()
    other_book.work.num_decoding -= 100
    assert texts == {0: "aba", 1: "b", 2: "b"}
    assert num_tokens_before_others >= (2 if prefill else 1)
    assert [r.request_id for r in worker.requests] == ["r-0", "r-1", "r-2"]
    assert [r.sampling.sample_index for r in worker.requests] == [0, 1, 2]
    assert {r.sampling.seed for r in worker.requests} == {1}
    assert other.requests == []
    assert last is not None
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 5)


async def test_each_of_n_has_its_own_stop_string(bench: Bench) -> None:
    worker = await bench.add_worker(
        say(*bench.ids("ab.c")),
        Script([Step(token_ids=bench.ids("x.")), Step(gate=never())]),
    )
    answer = await bench.answer(n=2, stop=(".",))
    assert (answer.text(0), answer.text(1)) == ("ab", "x")
    assert [p.finish_reason for p in answer.pieces if p.finish_reason] == [FinishReason.STOP] * 2
    await worker.wait_cancelled()


async def test_prompt_logprobs_are_asked_of_the_leader_only(bench: Bench) -> None:
    worker = await bench.add_worker()
    await bench.answer(n=2, prompt_logprobs=0)
    asked = [r.sampling.HasField("prompt_logprobs") for r in worker.requests]
    assert asked == [True, False]


async def test_after_a_stop_string_the_workers_latest_word_counts(bench: Bench) -> None:
    """The call is cancelled, so the last piece with the usage never comes."""
    early = decode_pb2.DecodeResponse(
        usage=common_pb2.Usage(
            cached_tokens=3, sources=common_pb2.PromptSources(computed=2, local_hit=3)
        )
    )
    ids = bench.ids("a.")
    script = Script(
        [Step(token_ids=ids[:1], extra=early), Step(token_ids=ids[1:]), Step(gate=never())]
    )
    await bench.add_worker(script)
    usage = (await bench.answer(stop=(".",))).last.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (5, 2, 3)
    assert (usage.computed_tokens, usage.local_hit_tokens) == (2, 3)


async def test_without_the_workers_word_nothing_is_called_a_cache_hit(bench: Bench) -> None:
    await bench.add_worker(Script([Step(token_ids=bench.ids("a.")), Step(gate=never())]))
    usage = (await bench.answer(stop=(".",))).last.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.computed_tokens, usage.cached_tokens) == (5, 5, 0)


async def test_a_pause_ends_the_answers_of_a_request_that_have_not_begun(bench: Bench) -> None:
    worker = await bench.add_worker(Script([Step(gate=never())]))
    asking = asyncio.create_task(bench.answer(n=3))
    await worker.wait_requests(1)
    bench.parts.pool.parts.sessions.abort_answers()
    answer = await asyncio.wait_for(asking, 10)
    ends = {piece.index: piece.finish_reason for piece in answer.pieces}
    assert ends == dict.fromkeys(range(3), FinishReason.ABORT)
    assert len(worker.requests) == 1
    await worker.wait_cancelled()
    assert bench.is_idle()
