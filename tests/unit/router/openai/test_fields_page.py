"""docs/fields.md says what the schemas say, and they know every field of vLLM 0.32."""

from __future__ import annotations

import pytest

from scripts.api_table import APIS, VECTOR_APIS
from scripts.fields_page import OTHER, PAGE, names, page
from tests.integration.router.fields.cases import APIS as CASES

#: By endpoint, as vLLM 0.32 has them.
VLLM = {
    "/v1/chat/completions": """
        add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt
        chat_template chat_template_kwargs continue_final_message documents ec_transfer_params echo
        frequency_penalty ignore_eos include_reasoning include_stop_str_in_output
        kv_transfer_params length_penalty logit_bias logprob_token_ids logprobs
        max_completion_tokens max_tokens media_io_kwargs messages min_p min_tokens mm_payload
        mm_processor_kwargs model n parallel_tool_calls presence_penalty priority prompt_logprobs
        reasoning_effort repetition_detection repetition_penalty request_id response_format
        return_mm_kwargs return_prompt_text return_token_ids return_token_offsets
        return_tokens_as_token_ids routed_experts_prompt_start seed session_id skip_special_tokens
        spaces_between_special_tokens stop stop_token_ids stream stream_interval stream_options
        structured_outputs temperature thinking_token_budget tool_choice tools top_k top_logprobs
        top_p truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs watermarking
        """,
    "/v1/completions": """
        add_special_tokens allowed_token_ids bad_words cache_salt ec_transfer_params echo
        frequency_penalty ignore_eos include_stop_str_in_output kv_transfer_params length_penalty
        logit_bias logprob_token_ids logprobs max_tokens min_p min_tokens mm_payload model n
        presence_penalty priority prompt prompt_embeds prompt_logprobs repetition_detection
        repetition_penalty request_id response_format return_mm_kwargs return_token_ids
        return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start seed session_id
        skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream
        stream_interval stream_options structured_outputs suffix temperature thinking_token_budget
        top_k top_p truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs
        watermarking
        """,
    "/v1/responses": """
        background cache_salt chat_template_kwargs ec_transfer_params enable_response_messages
        frequency_penalty ignore_eos include include_reasoning include_stop_str_in_output input
        instructions kv_transfer_params logit_bias max_output_tokens max_tool_calls media_io_kwargs
        metadata min_p mm_payload mm_processor_kwargs model parallel_tool_calls presence_penalty
        previous_input_messages previous_response_id priority prompt prompt_cache_key reasoning
        repetition_penalty request_id return_mm_kwargs seed service_tier session_id
        skip_special_tokens stop stop_token_ids store stream structured_outputs temperature text
        tool_choice tools top_k top_logprobs top_p truncation user vllm_xargs watermarking
        """,
    "/v1/messages": """
        cache_salt chat_template_kwargs ec_transfer_params kv_transfer_params max_tokens messages
        metadata mm_payload model output_config return_mm_kwargs stop_sequences stream system
        temperature thinking tool_choice tools top_k top_p vllm_xargs watermarking
        """,
    "/inference/v1/generate": """
        cache_salt content_parts ec_transfer_params features kv_transfer_params model output_mode
        priority reasoning_ended reasoning_parser_kwargs request_id return_token_ids
        sampling_params stream stream_options token_ids token_offsets
        """,
}


def test_the_page_is_what_the_schemas_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m scripts.fields_page`"


@pytest.mark.parametrize("url", VLLM)
def test_every_field_of_vllm_is_known(url: str) -> None:
    api = APIS[url]
    known = {*api.schema.model_fields, *api.refused, *api.ignored}
    assert not set(VLLM[url].split()) - known


def test_every_field_of_the_page_has_an_effect_or_a_reason() -> None:
    answers, vectors = page().split("## Vectors")
    shown = {row.split("`")[1]: row for row in answers.splitlines() if row.startswith("| `")}
    assert set(shown) == set(names(APIS))
    assert all(f"| `{name}` |" in vectors for name in names(VECTOR_APIS))
    assert set(OTHER) <= set(shown)
    for url, api in APIS.items():
        for name, row in shown.items():
            if name in api.schema.model_fields and name not in api.ignored:
                assert name in CASES[url], f"{name} of {url} has no case"
            elif name in {*api.refused, *api.ignored}:
                assert {**api.refused, **api.ignored}[name] in row or name in OTHER
