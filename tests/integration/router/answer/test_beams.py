"""Beam search over scripted workers: the search of one engine, on the workers' own words."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from baton.v1 import decode_pb2
from services.router.openai.replies.answers import stream_answers
from shared.errors import DrainingError, InvalidRequestError, RequestCancelledError
from shared.generation.params import GenerationParams
from shared.identity import Role
from shared.request.answer import FinishReason
from shared.request.beam_search import BeamOptions, BeamSearch, Candidate
from shared.request.sampling_params import SamplingParams
from tests.fakes.scripted.decode import Script, Step, never, position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.request.beam_search import Beam
    from tests.integration.router.conftest import Bench

EOS = 0
VOCAB = 60
BEAMS = BeamOptions(width=3)


def likely_after(token_ids: Sequence[int], num: int) -> dict[int, float]:
    """What follows these tokens: as random as it is certain."""
    rng = random.Random(",".join(map(str, token_ids)))
    tokens = rng.sample(range(VOCAB), VOCAB)
    # The floats of the wire.
    logprobs = sorted((-rng.randrange(1, 256) / 32 for _ in tokens), reverse=True)
    return dict(list(zip(tokens, logprobs, strict=True))[:num])


def answer(request: decode_pb2.DecodeRequest) -> Script:
    """As a worker whose model is `likely_after` would."""
    sampling, token_ids = request.sampling, list(request.token_ids)
    steps = []
    while len(steps) < sampling.max_tokens - request.num_resumed_tokens:
        top = likely_after(token_ids, sampling.logprobs)
        token_id, logprob = next(iter(top.items()))
        extra = decode_pb2.DecodeResponse(logprobs=[position(token_id, logprob, top)])
        steps.append(Step(token_ids=(token_id,), extra=extra))
        token_ids.append(token_id)
    return Script(steps)


def expected(
    prompt: Sequence[int], beams: BeamOptions, max_tokens: int, *, ignore_eos: bool = False
) -> list[Beam[None]]:
    """The search itself, without workers."""
    sampling = SamplingParams(max_tokens=max_tokens, eos_token_ids=(EOS,), ignore_eos=ignore_eos)
    search: BeamSearch[None] = BeamSearch(beams, sampling)
    while not search.is_done:
        search.advance(
            [
                [
                    Candidate(token_id, logprob, None)
                    for token_id, logprob in likely_after(
                        (*prompt, *beam.token_ids), search.num_candidates
                    ).items()
                ]
                for beam in search.running
            ]
        )
    return search.answers


@pytest.mark.parametrize("text", ["hello", "another one", "x"])
async def test_the_answers_are_those_of_the_search(bench: Bench, text: str) -> None:
    worker = await bench.add_worker()
    worker.answer = answer
    request = bench.request(text, beams=BEAMS, n=2, max_tokens=12, logprobs=1)
    found = await bench.answer(request)
    best = expected(request.prompt_token_ids, BEAMS, 12)[:2]
    assert [found.token_ids(i) for i in range(2)] == [beam.token_ids for beam in best]
    for piece, beam in zip(found.pieces, best, strict=True):
        assert sum(d.chosen.logprob for d in piece.details) == pytest.approx(beam.logprob)
        assert [d.chosen.token_id for d in piece.details] == list(beam.token_ids)
        assert {len(d.top) for d in piece.details} == {1}
        assert piece.stop_token_id == beam.stop_token_id
        shown = beam.token_ids if beam.stop_token_id is None else beam.token_ids[:-1]
        assert piece.text == bench.parts.tokenizer.decode(shown)
    usage = found.last.usage
    assert usage is not None
    assert usage.prompt_tokens == len(request.prompt_token_ids)
    assert usage.completion_tokens == sum(len(beam.token_ids) for beam in best)


async def test_only_the_prompt_is_handed_on(bench: Bench) -> None:
    await bench.add_worker(role=Role.PREFILL)
    worker = await bench.add_worker()
    worker.answer = answer
    await bench.answer(bench.request("hello", beams=BEAMS, n=3, max_tokens=4, ignore_eos=True))
    first, *others = worker.requests
    assert first.prefill_candidates
    # The second token is what the decode worker makes itself, with the prompt's KV.
    assert (first.num_resumed_tokens, first.sampling.max_tokens) == (0, 2)
    assert [r.num_resumed_tokens for r in others] == [1] * 3 + [2] * 3 + [3] * 3
    assert not any(r.prefill_candidates for r in others)
    assert all(r.sampling.max_tokens == r.num_resumed_tokens + 1 for r in others)
    assert len({r.request_id for r in worker.requests}) == len(worker.requests)


async def test_another_worker_goes_on_with_the_beams(bench: Bench) -> None:
    first, second = await bench.add_worker(), await bench.add_worker()
    num_steps = 0

    def lose_one(request: decode_pb2.DecodeRequest) -> Script:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 6:
            return Script([Step(error=DrainingError("as the script says"))])
        return answer(request)

    # Whichever is asked first is lost in the middle.
    first.answer = second.answer = lose_one
    request = bench.request("hello", beams=BEAMS, n=3, max_tokens=6, ignore_eos=True)
    found = await bench.answer(request)
    best = expected(request.prompt_token_ids, BEAMS, 6, ignore_eos=True)
    assert [found.token_ids(i) for i in range(3)] == [beam.token_ids for beam in best]
    assert num_steps == 1 + 5 * 3 + 1
    assert {len(worker.requests) > 0 for worker in bench.workers} == {True}
    assert found.last.usage is not None
    assert found.last.usage.num_replays == 1


async def test_a_pause_ends_a_search(bench: Bench) -> None:
    worker = await bench.add_worker()
    stuck: list[decode_pb2.DecodeRequest] = []

    def answer_first(request: decode_pb2.DecodeRequest) -> Script:
        if not request.num_resumed_tokens:
            return answer(request)
        stuck.append(request)
        return Script([Step(gate=never())])

    worker.answer = answer_first
    request = bench.request("hello", beams=BEAMS, n=3, max_tokens=6, ignore_eos=True)
    asking = asyncio.create_task(bench.answer(request))
    await worker.wait_requests(4)
    bench.parts.pool.parts.sessions.abort_answers()
    with pytest.raises(RequestCancelledError, match="was aborted"):
        await asyncio.wait_for(asking, 10)
    assert len(stuck) == 3
    assert bench.is_idle()


async def test_too_many_beams_are_refused_before_anything_is_done(bench: Bench) -> None:
    worker = await bench.add_worker()
    with pytest.raises(InvalidRequestError) as refused:
        await bench.answer(bench.request("a", beams=BeamOptions(width=20), max_tokens=4))
    assert refused.value.param == "best_of"
    assert worker.requests == []


async def test_the_best_of_several_answers_are_given(bench: Bench) -> None:
    worker = await bench.add_worker()
    says = {0: (-3.0, "a"), 1: (-1.0, "b"), 2: (-2.0, "c"), 3: (-0.5, "d")}

    def speak(request: decode_pb2.DecodeRequest) -> Script:
        logprob, char = says[request.sampling.sample_index]
        steps = [
            Step(
                token_ids=(token_id,),
                extra=decode_pb2.DecodeResponse(logprobs=[position(token_id, logprob, {})]),
            )
            for token_id in bench.ids(char * (request.sampling.sample_index + 1))
        ]
        return Script(steps)

    worker.answer = speak
    request = replace(bench.request("hello"), params=GenerationParams(n=2, best_of=4))
    pieces = [piece async for _, piece in stream_answers(bench.parts.pipeline, [request])]
    assert [(p.index, p.text, p.details) for p in pieces] == [(0, "dddd", ()), (1, "bb", ())]
    assert [p.finish_reason for p in pieces] == [FinishReason.LENGTH] * 2
    assert pieces[0].usage is None
    assert pieces[1].usage is not None
    # All that was made was paid for.
    assert pieces[1].usage.completion_tokens == 1 + 2 + 3 + 4
