"""LLM: texts, ids and conversations in, finished answers out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.engine.events import FinishReason
from shared.engine.llm import LLM
from shared.engine.sampling_params import SamplingParams
from shared.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    llm = LLM(checkpoint, num_blocks=64)
    yield llm
    assert llm.engine.stats().num_free_blocks == 64
    llm.close()


def test_ids_and_texts_are_one_prompt_or_many(llm: LLM) -> None:
    ids = llm.tokenizer.encode("hello there")
    (by_text,) = llm.generate("hello there", GREEDY)
    (by_ids,) = llm.generate(ids, GREEDY)
    both = llm.generate(["hello there", ids], GREEDY)
    assert by_text.prompt == "hello there"
    assert by_ids.prompt is None
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == tuple(ids)
    answers = {result.outputs[0].token_ids for result in (by_text, by_ids, *both)}
    assert len(answers) == 1
    assert len(next(iter(answers))) == 12
    assert by_text.outputs[0].text == llm.tokenizer.decode(by_text.outputs[0].token_ids)
    assert by_text.outputs[0].finish_reason is FinishReason.LENGTH


def test_several_answers_share_the_prompt_and_differ(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=8, seed=3, ignore_eos=True, logprobs=1)
    (result,) = llm.generate("tell me", sampling, n=3)
    assert [answer.index for answer in result.outputs] == [0, 1, 2]
    assert len({answer.token_ids for answer in result.outputs}) == 3
    assert all(len(answer.logprobs) == 8 for answer in result.outputs)
    assert llm.generate("tell me", sampling, n=2)[0].outputs == result.outputs[:2]


def test_a_stop_string_cuts_the_answer(llm: LLM) -> None:
    (whole,) = llm.generate("go", GREEDY)
    text = whole.outputs[0].text
    stop = text[len(text) // 2 :][:2]
    (cut,) = llm.generate("go", GREEDY, stop=stop)
    answer = cut.outputs[0]
    assert answer.text == text[: text.index(stop)]
    assert (answer.finish_reason, answer.stop_reason) == (FinishReason.STOP, stop)
    assert answer.token_ids == whole.outputs[0].token_ids[: len(answer.token_ids)]
    (included,) = llm.generate("go", GREEDY, stop=[stop], include_stop_str_in_output=True)
    assert included.outputs[0].text == answer.text + stop


def test_a_stop_token_is_named(llm: LLM) -> None:
    (whole,) = llm.generate("go", GREEDY)
    token = whole.outputs[0].token_ids[3]
    sampling = SamplingParams(max_tokens=12, temperature=0.0, stop_token_ids=(token,))
    answer = llm.generate("go", sampling)[0].outputs[0]
    assert (answer.finish_reason, answer.stop_reason) == (FinishReason.STOP, token)
    assert answer.token_ids[-1] == token


def test_the_models_end_token_applies(llm: LLM) -> None:
    eos = llm.tokenizer.eos_token_ids[0]
    sampling = SamplingParams(max_tokens=5, allowed_token_ids=(eos,))
    answer = llm.generate("go", sampling)[0].outputs[0]
    assert (answer.token_ids, answer.text, answer.stop_reason) == ((eos,), "", eos)


def test_prompt_logprobs_and_cached_tokens(llm: LLM) -> None:
    prompt = list(range(3, 43))
    llm.generate(prompt, GREEDY)
    (cached,) = llm.generate(prompt, GREEDY)
    assert cached.num_cached_tokens == 32
    scored = SamplingParams(max_tokens=2, prompt_logprobs=2)
    (result,) = llm.generate(prompt, scored, n=2)
    assert result.num_cached_tokens == 0
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == 40


def test_chat(llm: LLM) -> None:
    message = [{"role": "user", "content": "hi"}]
    (one,) = llm.chat(message, GREEDY)
    two = llm.chat([message, message], GREEDY)
    assert [result.outputs for result in two] == [one.outputs] * 2
    rendered = llm.chat_template.render(message)
    assert one.prompt_token_ids == tuple(llm.tokenizer.encode(rendered, add_special_tokens=False))


def test_a_bad_prompt_refuses_the_batch(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError):
        llm.generate([[5, 6], [100_000]], GREEDY)
    with pytest.raises(InvalidRequestError, match="n must"):
        llm.generate("go", GREEDY, n=0)
    assert not llm.engine.has_work()


def test_settings_are_checked(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="block_size"):
        LLM(checkpoint, block_size=0)
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        LLM(checkpoint, max_num_seqs=10, max_num_batched_tokens=9)
    with pytest.raises(ConfigError, match="without chunked"):
        LLM(checkpoint, num_blocks=64, enable_chunked_prefill=False, max_num_batched_tokens=100)
