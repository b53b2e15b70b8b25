"""vLLM's parameters of sampling, and the engine argument that reads `extra_args`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from baton import EngineArgs, SamplingParams
from cli.places import SHIPPED_MODEL
from shared.errors import InvalidRequestError, UnsupportedError
from tests.fakes.engine.logits_processors import NoRepeat

#: Of vLLM 0.32's SamplingParams, without those that begin with an underscore.
VLLM_NAMES = """
    n presence_penalty frequency_penalty repetition_penalty temperature watermarking top_p top_k
    min_p seed stop stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs
    prompt_logprob_token_ids prompt_logprob_start logprob_token_ids flat_logprobs detokenize
    skip_special_tokens spaces_between_special_tokens include_stop_str_in_output output_kind
    stream_interval skip_clone output_text_buffer_length structured_outputs logit_bias
    allowed_token_ids extra_args bad_words skip_reading_prefix_cache thinking_token_budget
    repetition_detection routed_experts_prompt_start trace_decode_token_ids
    """
#: Beyond those.
OWN_NAMES = {"return_hidden_states"}


def test_one_text_is_no_list_of_words() -> None:
    with pytest.raises(InvalidRequestError, match="must be a list of words, not 'abc'"):
        SamplingParams(bad_words="abc")  # type: ignore[arg-type]
    assert SamplingParams(bad_words=["abc"]).to_generation().bad_words == ("abc",)


def test_parameters_have_the_names_of_vllm() -> None:
    assert {field.name for field in fields(SamplingParams)} == {*VLLM_NAMES.split(), *OWN_NAMES}


@pytest.mark.parametrize("processor", [NoRepeat, "tests.fakes.engine.logits_processors:NoRepeat"])
def test_processors_of_logits_are_classes_or_their_names(processor: Any) -> None:
    args = EngineArgs(SHIPPED_MODEL, logits_processors=[processor])
    assert args.settings().engine.logits_processors == (
        "tests.fakes.engine.logits_processors:NoRepeat",
    )


@pytest.mark.parametrize(
    "given",
    [{"flat_logprobs": True}, {"trace_decode_token_ids": [1]}],
)
def test_what_is_not_offered_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(given))):
        SamplingParams(**given)
