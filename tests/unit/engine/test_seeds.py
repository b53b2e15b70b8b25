"""Same seed, same tokens: alone, in any batch, preempted, chunked, and over a hand-off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shared.engine.sequence.request import KVSource
from tests.fakes.engine.engines import Run, drain, generate, make_engine, make_request

if TYPE_CHECKING:
    from shared.model.loaded import LoadedModel

PROMPT = np.random.default_rng(1).integers(3, 512, 23).tolist()
OTHERS = [np.random.default_rng(i).integers(3, 512, 11 + i).tolist() for i in range(6)]
SAMPLING: dict[str, Any] = {
    "temperature": 0.9,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.001,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.3,
    "min_tokens": 5,
    "seed": 1234,
    "max_tokens": 16,
}


@pytest.fixture(scope="module")
def alone(llama: LoadedModel) -> list[int]:
    return generate(make_engine(llama), make_request("a", PROMPT, **SAMPLING)).tokens("a")


@pytest.mark.parametrize("max_num_batched_tokens", [8, 19, 512])
@pytest.mark.parametrize("num_blocks", [14, 200])
def test_neighbours_chunks_and_preemption_do_not_matter(
    llama: LoadedModel, alone: list[int], num_blocks: int, max_num_batched_tokens: int
) -> None:
    engine = make_engine(
        llama, num_blocks=num_blocks, max_num_batched_tokens=max_num_batched_tokens
    )
    others = [
        make_request(str(i), p, seed=i, temperature=0.7 * (i % 2), max_tokens=12)
        for i, p in enumerate(OTHERS)
    ]
    run = generate(engine, *others[:3], make_request("a", PROMPT, **SAMPLING), *others[3:])
    assert run.tokens("a") == alone
    assert (engine.stats().counters["num_preemptions"] > 0) == (num_blocks == 14)


@pytest.mark.parametrize("change", [{"seed": 1235}, {"sample_index": 1}])
def test_another_stream_gives_another_answer(
    llama: LoadedModel, alone: list[int], change: dict[str, int]
) -> None:
    run = generate(make_engine(llama), make_request("a", PROMPT, **(SAMPLING | change)))
    assert run.tokens("a") != alone


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.9, "seed": 3},
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 0.8},
    "frequency": {"frequency_penalty": 0.6, "temperature": 0.7, "seed": 4},
    "min_tokens": {"min_tokens": 9, "eos_token_ids": tuple(range(256)), "temperature": 1.0},
    "bad words": {"bad_words_token_ids": ((5, 6), (7,)), "temperature": 1.0, "seed": 5},
    "all": SAMPLING,
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_goes_on_behind_any_token_as_it_would_have(llama: LoadedModel, kind: str) -> None:
    """After every k tokens: tokens, log probabilities, the reason of its end."""
    sampling = {"max_tokens": 12} | KINDS[kind] | {"logprobs": 2}
    whole = generate(make_engine(llama), make_request("a", PROMPT, **sampling))
    tokens, said = whole.tokens("a"), [p for e in whole.new_tokens("a") for p in e.logprobs]
    engine = make_engine(llama)
    for num in range(1, len(tokens)):
        resumed = tuple(tokens[:num])
        request = make_request(str(num), PROMPT, resumed_token_ids=resumed, **sampling)
        run = generate(engine, request)
        assert run.tokens(str(num)) == tokens[num:]
        assert run.finish_reason(str(num)) is whole.finish_reason("a")
        again = [p for e in run.new_tokens(str(num)) for p in e.logprobs]
        assert [p.chosen.token_id for p in again] == tokens[num:]
        for one, other in zip(again, said[num:], strict=True):
            assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-4)
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


@pytest.mark.parametrize("received", [True, False])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 23])
def test_a_hand_off_does_not_matter(llama: LoadedModel, length: int, received: bool) -> None:
    prompt = PROMPT[:length]
    expected = generate(make_engine(llama), make_request("a", prompt, **SAMPLING)).tokens("a")
    prefill, decode, run = make_engine(llama), make_engine(llama), Run()
    decode.add(make_request("a", prompt, kv_source=KVSource.TRANSFER, **SAMPLING))
    drain(decode, run)
    sent = generate(prefill, make_request("a", prompt, hold_blocks=True, **SAMPLING))
    (first_token,) = sent.tokens("a")
    assert prefill.kv_memory is not None
    assert decode.kv_memory is not None
    if received:
        source, target = sent.admitted("a")[0].tables[0], run.admitted("a")[0].tables[0]
        decode.kv_memory.blocks[list(target)] = prefill.kv_memory.blocks[list(source)]
        decode.complete_transfer("a", first_token)
    else:
        decode.fail_transfer("a", first_token)
    drain(decode, run)
    assert [first_token, *run.tokens("a")] == expected
