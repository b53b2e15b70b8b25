from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from shared.errors import InvalidRequestError
from shared.generation.limits import RequestLimits
from shared.generation.params import GenerationParams
from shared.generation.resolver import SamplingResolver
from shared.request.grammar.spec import GrammarKind, GrammarSpec, Thinking
from shared.request.grammar.wire import grammar_from_wire
from shared.request.logprobs_mode import LogprobsMode
from shared.request.sampling_params import SamplingParams
from shared.request.thinking_budget import ThinkingBudget
from shared.request.wire import sampling_from_wire, sampling_to_wire
from shared.text.generation_defaults import GenerationDefaults
from shared.text.tokenizer import Tokenizer
from tests.fakes.text import tiny_tokenizer

TOKENIZER = tiny_tokenizer.load()
THINKING = Thinking(begin_token_id=3, end_token_id=4, is_open=False)
VOCAB_SIZE = TOKENIZER.vocab_size + 10


def _resolve(
    tokenizer: Tokenizer = TOKENIZER, prompt: tuple[int, ...] = (1, 2, 3), **params: Any
) -> SamplingParams:
    resolver = SamplingResolver(tokenizer, vocab_size=VOCAB_SIZE)
    return resolver.resolve(GenerationParams(**params), prompt_token_ids=prompt, max_model_len=100)


def test_without_wishes_the_defaults_are_vllms() -> None:
    params = _resolve()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1.0, 0, 1.0, 0.0)
    assert params.max_tokens == 97
    assert params.eos_token_ids == TOKENIZER.eos_token_ids


def test_the_models_defaults_come_before_vllms_and_after_the_clients() -> None:
    defaults = GenerationDefaults(temperature=0.6, top_k=20, top_p=0.9, max_tokens=40)
    tokenizer = Tokenizer(tiny_tokenizer.byte_level(), defaults=defaults)
    params = _resolve(tokenizer, top_k=0)
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 0, 0.9)
    assert params.max_tokens == 40
    assert _resolve(tokenizer, max_tokens=50).max_tokens == 50
    assert _resolve(tokenizer, min_tokens=45).max_tokens == 45


def test_a_seed_is_drawn_if_none_was_given() -> None:
    assert _resolve().seed != _resolve().seed
    assert _resolve(seed=5).seed == 5
    for given, used in ((-2, 2**64 - 2), (-(2**63), 2**63), (2**64 - 1, 2**64 - 1)):
        assert _resolve(seed=given).seed == used
        assert SamplingParams(max_tokens=1, seed=given).seed == used


def test_minus_one_is_no_seed() -> None:
    assert SamplingParams(max_tokens=1, seed=-1).seed is None
    assert _resolve(seed=-1).seed != _resolve(seed=-1).seed


def test_minus_one_is_no_top_k() -> None:
    assert _resolve(top_k=-1).top_k == 0
    assert SamplingParams(max_tokens=1, top_k=-1).top_k == 0


def with_prefix_space() -> Tokenizer:
    """A tokenizer that puts a space in front of every text, as Llama 2's."""
    made = tiny_tokenizer.sentencepiece()
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    return Tokenizer(made)


@pytest.mark.parametrize("tokenizer", [TOKENIZER, with_prefix_space()], ids=["bare", "prefixed"])
@pytest.mark.parametrize("word", ["the", " fox", "hello", "a", "baton", "<think>"])
def test_bad_words_are_forbidden_with_and_without_a_space(tokenizer: Tokenizer, word: str) -> None:
    resolver = SamplingResolver(tokenizer, vocab_size=tokenizer.vocab_size)
    params = GenerationParams(bad_words=(word,))
    forbidden = resolver.resolve(params, prompt_token_ids=(1,), max_model_len=9).bad_words_token_ids
    for text in (word.lstrip(), " " + word.lstrip()):
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        assert any(ids[-len(each) :] == each for each in forbidden), (text, ids, forbidden)
    # What is forbidden is the word, never the space before it.
    assert all(word.strip() in tokenizer.decode(each, False) for each in forbidden)


def test_a_form_after_a_space_of_its_own_is_not_said_twice() -> None:
    # "<think>" is one token, and " <think>" is a space and that token.
    words = _resolve(bad_words=("<think>",)).bad_words_token_ids
    assert words == ((TOKENIZER.token_id("<think>"),),)


def test_bad_words_are_tokenised_once_for_all_prompts_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And again for the next request: its time tells nothing of this one."""
    encode, texts = Tokenizer.encode, []

    def noted(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        texts.append(text)
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", noted)
    resolver = SamplingResolver(TOKENIZER, vocab_size=VOCAB_SIZE)
    for num_requests in (1, 2):
        words = tuple(["fox", "hound"])  # noqa: C409 two tuples, as two requests have
        for max_tokens in (3, 4, 5):
            params = replace(GenerationParams(bad_words=words), max_tokens=max_tokens)
            found = resolver.resolve(params, prompt_token_ids=(1,), max_model_len=9)
            assert found.bad_words_token_ids
        assert texts == ["fox", " fox", "hound", " hound"] * num_requests


def test_logit_bias_is_clamped() -> None:
    assert _resolve(logit_bias={3: 1e9, 4: -500.0}).logit_bias == {3: 100.0, 4: -100.0}


def test_tokens_only_the_model_knows_are_allowed() -> None:
    beyond = TOKENIZER.vocab_size + 1
    assert _resolve(prompt=(beyond,), allowed_token_ids=(beyond, beyond)).allowed_token_ids == (
        beyond,
    )


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 2.01}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 2**32}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": 3.0}, "presence_penalty"),
        ({"frequency_penalty": -3.0}, "frequency_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 98}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 98}, "min_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"logprob_token_ids": (1,)}, "logprob_token_ids"),
        ({"logprob_token_ids": (), "logprobs": 0}, "logprob_token_ids"),
        ({"logprob_token_ids": (VOCAB_SIZE,), "logprobs": 0}, "logprob_token_ids"),
        ({"logprob_token_ids": tuple(range(129)), "logprobs": 0}, "logprob_token_ids"),
        ({"thinking_token_budget": 3}, "thinking_token_budget"),
        ({"thinking_token_budget": -1, "thinking": THINKING}, "thinking_token_budget"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("a",) * 129}, "stop"),
        ({"stop_token_ids": (VOCAB_SIZE,)}, "stop_token_ids"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"allowed_token_ids": (-1,)}, "allowed_token_ids"),
        ({"bad_words": ("",)}, "bad_words"),
        ({"bad_words": (" ",)}, "bad_words"),
        ({"bad_words": ("a",) * 1025}, "bad_words"),
    ],
)
def test_every_violation_names_its_parameter(params: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        _resolve(**params)
    assert caught.value.param == param


def test_alternatives_are_as_many_as_the_router_allows() -> None:
    for limit, asked, expected in ((-1, -1, VOCAB_SIZE), (-1, 10**6, VOCAB_SIZE), (30, 30, 30)):
        resolver = SamplingResolver(
            TOKENIZER, vocab_size=VOCAB_SIZE, limits=RequestLimits(max_logprobs=limit)
        )
        params = GenerationParams(logprobs=asked, prompt_logprobs=asked)
        found = resolver.resolve(params, prompt_token_ids=(1,), max_model_len=100)
        assert (found.logprobs, found.prompt_logprobs) == (expected, expected)
    with pytest.raises(InvalidRequestError, match="at most 30, not -1: see --max-logprobs"):
        resolver.resolve(GenerationParams(logprobs=-1), prompt_token_ids=(1,), max_model_len=100)


@pytest.mark.parametrize("prompt", [(), (VOCAB_SIZE,), (-1,), (1,) * 100])
def test_prompts_the_model_cannot_take_are_refused(prompt: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        _resolve(prompt=prompt)
    assert caught.value.param == "prompt"


def test_the_message_says_how_long_a_prompt_may_be() -> None:
    with pytest.raises(InvalidRequestError, match="maximum context length is 100 tokens"):
        _resolve(prompt=(1,) * 101)
    with pytest.raises(InvalidRequestError, match="98 > 100 - 3"):
        _resolve(max_tokens=98)


def test_log_probabilities_are_of_the_mode_that_is_set() -> None:
    mode = LogprobsMode.PROCESSED_LOGITS
    resolver = SamplingResolver(TOKENIZER, vocab_size=TOKENIZER.vocab_size, logprobs_mode=mode)
    place: dict[str, Any] = {"prompt_token_ids": [1], "max_model_len": 9}
    assert resolver.resolve(GenerationParams(), **place).logprobs_mode is mode
    own = GenerationParams(logprobs_mode=LogprobsMode.RAW_LOGPROBS)
    assert resolver.resolve(own, **place).logprobs_mode is LogprobsMode.RAW_LOGPROBS


def test_all_fields_reach_the_wire() -> None:
    params = SamplingParams(
        max_tokens=9,
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={3: 1.5},
        allowed_token_ids=(1, 2),
        bad_words_token_ids=((1, 2), (3,)),
        min_tokens=2,
        eos_token_ids=(0,),
        stop_token_ids=(4,),
        ignore_eos=True,
        seed=2**64 - 1,
        sample_index=3,
        logprobs=0,
        prompt_logprobs=5,
        logprob_token_ids=(3, 4),
        logprobs_mode=LogprobsMode.RAW_LOGITS,
        return_hidden_states=True,
        num_speculative_tokens=6,
        grammar=GrammarSpec(kind=GrammarKind.REGEX, text="a"),
        extra_args={"a": (1, "b")},
        thinking_budget=ThinkingBudget(max_tokens=3, thinking=THINKING),
    )
    wire = sampling_to_wire(params)
    for name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "min_tokens", "seed"):
        assert getattr(wire, name) == getattr(params, name)
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty", "ignore_eos"):
        assert getattr(wire, name) == getattr(params, name)
    for name in ("thinking_budget", "logprobs_mode"):
        assert getattr(sampling_from_wire(wire), name) == getattr(params, name)
    assert grammar_from_wire(wire.grammar) == params.grammar
    for name in ("sample_index", "logprobs", "prompt_logprobs", "num_speculative_tokens"):
        assert getattr(wire, name) == getattr(params, name)
    assert dict(wire.logit_bias) == params.logit_bias
    assert tuple(wire.allowed_token_ids.ids) == params.allowed_token_ids
    assert tuple(wire.logprob_token_ids.ids) == params.logprob_token_ids
    assert [tuple(w.ids) for w in wire.bad_words_token_ids] == [(1, 2), (3,)]
    assert (list(wire.eos_token_ids), list(wire.stop_token_ids)) == ([0], [4])
    assert [item.WhichOneof("value") for item in wire.extra_args["a"].list.items] == [
        "integer",
        "text",
    ]
    # Every field of the message is known here.
    assert len(wire.ListFields()) == len(wire.DESCRIPTOR.fields)


def test_no_logprobs_and_logprobs_of_the_chosen_token_differ_on_the_wire() -> None:
    assert not sampling_to_wire(_resolve()).HasField("logprobs")
    assert sampling_to_wire(_resolve(logprobs=0)).HasField("logprobs")
    assert not sampling_to_wire(_resolve()).HasField("allowed_token_ids")
