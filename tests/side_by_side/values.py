"""Values of each field of a request: a good one, and what is wrong with others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_HI = [{"role": "user", "content": "What is a list?"}]
_CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": _OBJECT}}
_TOOL = {"type": "function", "name": "f", "parameters": _OBJECT}
_INPUT_TOOL = {"name": "f", "input_schema": _OBJECT}
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Values:
    """A good value; one of the right type that must not be, if there is one."""

    good: Any
    beyond: Any = _ABSENT
    #: Fields that the good value needs beside it.
    beside: Mapping[str, Any] = field(default_factory=dict)

    def kinds(self) -> Iterator[tuple[str, Any]]:
        """What is sent, by the name of the kind."""
        yield "good", self.good
        yield "wrong", _wrong(self.good)
        yield "null", None
        if isinstance(self.good, int | float) and not isinstance(self.good, bool):
            yield "text", str(self.good)
        if self.beyond is not _ABSENT:
            yield "beyond", self.beyond


def _wrong(good: Any) -> Any:
    """No field takes both."""
    return {"no": []} if isinstance(good, str | int | float | list) else "no"


#: Of every endpoint that has the field.
VALUES: dict[str, Values] = {
    "access_programs": Values({}),
    "add_generation_prompt": Values(False),
    "add_special_tokens": Values(True),
    "allowed_token_ids": Values([42, 75], [10**7]),
    "audio": Values({"voice": "alloy", "format": "wav"}),
    "background": Values(True),
    "background_options": Values({}),
    "bad_words": Values(["list"], [""]),
    "best_of": Values(2, 0),
    "cache_control": Values({"type": "ephemeral"}),
    "cache_salt": Values("salt", ""),
    "chat_template": Values("{{ messages[0].content }}", "{% if %}"),
    "chat_template_kwargs": Values({"mood": "good"}),
    "container": Values("c"),
    "content_parts": Values([{"type": "text"}]),
    "context_management": Values([{"type": "compaction"}]),
    "continue_final_message": Values(True, beside={"add_generation_prompt": False}),
    "conversation": Values("conv_1"),
    "diagnostics": Values({}),
    "documents": Values([{"text": "law"}]),
    "early_stopping": Values(True, "soon", {"use_beam_search": True, "n": 2}),
    "ec_transfer_params": Values({"a": "b"}),
    "echo": Values(True),
    "enable_response_messages": Values(True),
    "extra_args": Values({"a": 1}),
    "features": Values({"mm_hashes": {}, "mm_placeholders": {}}),
    "frequency_penalty": Values(-0.5, 3),
    "function_call": Values("auto"),
    "functions": Values([{"name": "f", "parameters": _OBJECT}]),
    "guided_choice": Values(["a"]),
    "guided_decoding_backend": Values("auto"),
    "guided_grammar": Values('root ::= "a"'),
    "guided_json": Values(_OBJECT),
    "guided_regex": Values("a+"),
    "guided_whitespace_pattern": Values(" "),
    "ignore_eos": Values(True),
    "image": Values({}),
    "include": Values(["message.output_text.logprobs"], ["everything"]),
    "include_reasoning": Values(False),
    "include_stop_str_in_output": Values(True, beside={"stop": "o", "stop_sequences": ["o"]}),
    "inference_geo": Values("eu"),
    "input": Values("What is a list?", []),
    "instructions": Values("Be brief"),
    "kv_transfer_params": Values({"do_remote_decode": False}),
    "length_penalty": Values(2.0, -1000, {"use_beam_search": True, "n": 2}),
    "logit_bias": Values({"42": 1.0}, {"99999999": 1.0}),
    "logits_processors": Values(["a.b"]),
    "logprob_token_ids": Values([42, 75], [10**7], {"logprobs": 1}),
    "logprobs": Values(1, 99),
    "max_completion_tokens": Values(4, -1),
    "max_itl_ms": Values(1e9, 0),
    "max_output_tokens": Values(4, -1),
    "max_tokens": Values(4, -1),
    "max_tool_calls": Values(3, -1),
    "max_ttft_ms": Values(1e9, 0),
    "mcp_servers": Values([{"type": "url", "url": "http://a", "name": "a"}]),
    "media_io_kwargs": Values({"image": {}}),
    "messages": Values(_HI, []),
    "metadata": Values({"user_id": "b"}),
    "min_p": Values(0.25, 2),
    "min_tokens": Values(2, -1),
    "mm_payload": Values({}),
    "mm_processor_kwargs": Values({"a": 1}),
    "model": Values("m", "other"),
    "moderation": Values({"model": "m"}),
    "n": Values(2, 0, {"temperature": 1.0, "seed": 1}),
    "num_speculative_tokens": Values(3, -1),
    "output_config": Values({"effort": "low"}, {"effort": "enormous"}),
    "output_mode": Values("text", "image"),
    "parallel_tool_calls": Values(False),
    "prediction": Values({"type": "content", "content": "a"}),
    "presence_penalty": Values(0.5, 3),
    "previous_input_messages": Values([]),
    "previous_response_id": Values("resp_1", "no such id"),
    "priority": Values(0),
    "prompt": Values("What is", ""),
    "prompt_cache_key": Values("a"),
    "prompt_cache_options": Values({}),
    "prompt_cache_retention": Values("24h"),
    "prompt_embeds": Values("AAAA"),
    "prompt_logprobs": Values(1, -5),
    "reasoning": Values({"effort": "low"}, {"effort": "enormous"}),
    "reasoning_effort": Values("low", "enormous"),
    "reasoning_ended": Values(True),
    "reasoning_parser_kwargs": Values({}),
    "repetition_detection": Values(
        {"max_pattern_size": 1, "min_count": 2}, {"max_pattern_size": -1, "min_count": 2}
    ),
    "repetition_penalty": Values(1.5, 0),
    "request_id": Values("mine"),
    "response_format": Values({"type": "json_object"}, {"type": "poem"}),
    "return_mm_kwargs": Values(True),
    "return_hidden_states": Values(True),
    "return_prompt_text": Values(True),
    "return_token_ids": Values(True),
    "return_token_offsets": Values(True),
    "return_tokens_as_token_ids": Values(True, beside={"logprobs": 1}),
    "routed_experts_prompt_start": Values(0, -1),
    "safety_identifier": Values("a"),
    "sampling_params": Values({"max_tokens": 4, "temperature": 0.0}),
    "seed": Values(12, 2**70),
    "service_tier": Values("auto", "gold"),
    "session_id": Values("a"),
    "skip_special_tokens": Values(False),
    "spaces_between_special_tokens": Values(False),
    "speed": Values("standard"),
    "stop": Values("o", [""]),
    "stop_sequences": Values(["o"], [""]),
    "stop_token_ids": Values([42], [-1]),
    "store": Values(False),
    "stream": Values(True),
    "stream_interval": Values(2, 0, {"stream": True}),
    "stream_options": Values({"include_usage": True}, beside={"stream": True}),
    "structured_outputs": Values({"regex": "a+"}, {"regex": "a+", "choice": ["a"]}),
    "suffix": Values("end"),
    "system": Values("Be brief"),
    "temperature": Values(0.0, -1),
    "text": Values({"format": {"type": "json_object"}}, {"format": {"type": "poem"}}),
    "thinking": Values({"type": "disabled"}, {"type": "enabled", "budget_tokens": 1}),
    "thinking_token_budget": Values(5, -2),
    "token_ids": Values([42, 75], [10**7]),
    "token_offsets": Values([[0, 1], [1, 2]]),
    "tokens": Values([42, 75], [-1]),
    "tool_choice": Values("none", "sometimes"),
    "tools": Values([_CHAT_TOOL]),
    "top_k": Values(7, -2),
    "top_logprobs": Values(2, 99),
    "top_p": Values(0.5, 2),
    "truncate_prompt_tokens": Values(2, -2),
    "truncation": Values("disabled", "auto"),
    "truncation_side": Values("right", "middle", {"truncate_prompt_tokens": 2}),
    "use_beam_search": Values(True, beside={"n": 2}),
    "user": Values("a"),
    "user_profile_id": Values("a"),
    "vllm_xargs": Values({"a": 1}, {"a": {}}),
    "watermarking": Values(True),
    "web_search_options": Values({}),
    "workspace_id": Values("a"),
}

#: Of one endpoint, where its API has another meaning for the name.
OWN: dict[str, dict[str, Values]] = {
    "/v1/chat/completions": {
        "logprobs": Values(True),
        "logprob_token_ids": Values([42, 75], [10**7], {"logprobs": True}),
        "return_tokens_as_token_ids": Values(True, beside={"logprobs": True}),
        "top_logprobs": Values(2, 99, {"logprobs": True}),
        "tool_choice": Values("none", "sometimes", {"tools": [_CHAT_TOOL]}),
        "parallel_tool_calls": Values(False, beside={"tools": [_CHAT_TOOL]}),
    },
    "/v1/responses": {
        "tools": Values([_TOOL]),
        "tool_choice": Values("none", "sometimes", {"tools": [_TOOL]}),
        "parallel_tool_calls": Values(False, beside={"tools": [_TOOL]}),
        "top_logprobs": Values(2, 99, {"include": ["message.output_text.logprobs"]}),
        "prompt": Values({"id": "p"}),
    },
    "/v1/messages": {
        "tools": Values([_INPUT_TOOL]),
        "tool_choice": Values({"type": "none"}, {"type": "some"}, {"tools": [_INPUT_TOOL]}),
        "service_tier": Values("auto"),
    },
}


def values_of(path: str, name: str) -> Values:
    """The values of an endpoint's field."""
    return OWN.get(path, {}).get(name) or VALUES[name]
