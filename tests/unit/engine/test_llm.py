"""LLM: texts, ids and conversations in, finished answers out."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shared.engine.llm import LLM
from shared.errors import ConfigError, InvalidRequestError
from shared.request.answer import FinishReason
from shared.request.sampling_params import SamplingParams

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


def test_every_form_of_a_prompt_may_stand_beside_the_others(llm: LLM) -> None:
    ids = llm.tokenizer.encode("hello there")
    (plain,) = llm.generate("hello there", GREEDY)
    forms: list[Any] = [
        "hello there",
        ids,
        tuple(ids),
        np.array(ids).tolist(),
        {"prompt": "hello there"},
        {"prompt_token_ids": ids},
        {"prompt": "hello there", "prompt_token_ids": ids},
        {"prompt_token_ids": ids, "cache_salt": "tenant"},
    ]
    results = llm.generate(forms, GREEDY)
    assert [result.outputs for result in results] == [plain.outputs] * len(forms)
    assert [result.prompt for result in results] == [
        "hello there", None, None, None, "hello there", None, "hello there", None,
    ]  # fmt: skip
    for form in forms:
        (alone,) = llm.generate(form, GREEDY)
        assert alone.prompt_token_ids == tuple(ids)
        assert alone.outputs == plain.outputs
    assert llm.generate([], GREEDY) == []


def test_a_salt_keeps_prefixes_apart(llm: LLM) -> None:
    prompt = {"prompt_token_ids": list(range(100, 140)), "cache_salt": "a"}
    cached = [
        llm.generate(form, GREEDY)[0].num_cached_tokens
        for form in (prompt, prompt, prompt | {"cache_salt": "b"})
    ]
    assert cached == [0, 32, 0]


@pytest.mark.parametrize(
    ("prompt", "key"),
    [
        ({"prompt": [5, 6]}, "prompt"),
        ({"prompt_token_ids": "hello"}, "prompt_token_ids"),
        ({"prompt_token_ids": [5, "6"]}, "prompt_token_ids"),
        ({"prompt_token_ids": [5, True]}, "prompt_token_ids"),
        ({"prompt": "a", "cache_salt": 3}, "cache_salt"),
        ({"prompt": "a", "multi_modal_data": {}}, "multi_modal_data"),
        ({"text": "a"}, "text"),
        ({}, "prompt"),
        ([5, "a"], "prompt"),
        (["a", 5], "prompt"),
        (["a", None], "prompt"),
        (b"bytes", "prompts"),
        (None, "prompts"),
        (7, "prompts"),
    ],
)
def test_what_is_no_prompt_is_refused_by_its_name(llm: LLM, prompt: Any, key: str) -> None:
    for prompts in (prompt, ["a", prompt]) if isinstance(prompt, dict) else (prompt,):
        with pytest.raises(InvalidRequestError, match=key) as error:
            llm.generate(prompts, GREEDY)
        assert error.value.param == key
    assert not llm.engine.has_work()


def test_without_a_seed_every_request_draws_anew(llm: LLM) -> None:
    hot = SamplingParams(max_tokens=12, temperature=1.5, ignore_eos=True)
    results = [*llm.generate(["go", "go"], hot), *llm.generate("go", hot)]
    assert len({result.outputs[0].token_ids for result in results}) == 3
    seeded = replace(hot, seed=0)
    results = [*llm.generate(["go", "go"], seeded), *llm.generate("go", seeded)]
    assert len({result.outputs[0].token_ids for result in results}) == 1


@pytest.fixture
def recommending(checkpoint: Path, tmp_path: Path) -> Path:
    """The checkpoint, whose authors recommend values."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    path = folder / "generation_config.json"
    values = {"temperature": 0.0, "top_k": 7, "repetition_penalty": 1.4, "max_new_tokens": 5}
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def test_the_model_s_own_sampling_values_apply_where_a_call_gives_none(
    recommending: Path, checkpoint: Path
) -> None:
    given = SamplingParams(max_tokens=5, temperature=0.0, top_k=7, repetition_penalty=1.4)
    llm = LLM(recommending, num_blocks=64)
    assert llm.get_default_sampling_params() == given
    (default,), (wanted,) = llm.generate("go on and on"), llm.generate("go on and on", given)
    (other,) = llm.generate("go on and on", SamplingParams(max_tokens=5, temperature=0.0))
    llm.close()
    assert default.outputs == wanted.outputs
    assert default.outputs != other.outputs
    for source, fields in (("vllm", {"max_tokens": 16}), (str(checkpoint), {"max_tokens": 16})):
        llm = LLM(recommending, num_blocks=64, generation_config=source)
        assert llm.get_default_sampling_params() == SamplingParams(**fields)
        llm.close()
    llm = LLM(checkpoint, num_blocks=64, generation_config=str(recommending))
    assert llm.get_default_sampling_params() == given
    llm.close()


def test_a_wrong_source_of_sampling_values_is_refused(recommending: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="generation_config must be auto, vllm or a folder"):
        LLM(recommending, generation_config=str(tmp_path / "nowhere"))
    (recommending / "generation_config.json").write_text('{"top_p": 7}')
    with pytest.raises(ConfigError, match=r"generation_config\.json: top_p must be"):
        LLM(recommending)


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
