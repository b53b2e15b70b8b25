"""What each documented field of the HTTP API does, as it can be seen from outside.

A case is a value and what must hold of the answer, of the prompt's tokens or of the parameters that
a worker gets; without the field it must not hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tests.fakes.model.embeds import as_field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from baton.v1 import decode_pb2
    from shared.generation.params import GenerationParams

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }};{% endfor %}"
    "{% if tools %}tools={{ tools | tojson }};{% endif %}"
    "{% if documents %}documents={{ documents | tojson }};{% endif %}"
    "{% if reasoning_effort is defined %}effort={{ reasoning_effort }};{% endif %}"
    "{% if enable_thinking is defined %}thinking={{ enable_thinking }};{% endif %}"
    "{% if mood is defined %}mood={{ mood }};{% endif %}"
    "{% if add_generation_prompt %}answer:{% endif %}"
)
_CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
#: What the worker says to every request.
ANSWER = f"<think>Hm</think>ok stop it<|im_start|>{_CALL}{_CALL}"


@dataclass(frozen=True)
class Seen:
    """What became of a request."""

    status: int
    #: None of a stream.
    json: Any
    text: str
    headers: Mapping[str, str]
    #: What the worker was asked, in order, and the text of the first prompt.
    asked: list[decode_pb2.DecodeRequest]
    prompt: str
    #: Of the pipeline's request. Pieces of an answer are as long as time makes them: how long they
    #: have to be is for test_interval.py; this tokenizer writes no spaces between special tokens:
    #: test_detokenizer.py has others.
    params: GenerationParams

    @property
    def sampling(self) -> Any:
        """The first answer's parameters."""
        return self.asked[0].sampling

    @property
    def choice(self) -> Any:
        """The first one of chat's and completions' answers."""
        return self.json["choices"][0]

    @property
    def answer(self) -> str:
        """The answer's text, whatever the API."""
        if "choices" in self.json:
            choice = self.choice
            return str(choice["text"] if "text" in choice else choice["message"]["content"])
        parts = self.json.get("content") or [
            part for item in self.json["output"] for part in item.get("content", ())
        ]
        return "".join(part.get("text", "") for part in parts if part["type"] != "reasoning_text")

    @property
    def num_calls(self) -> int:
        """How many tools the answer calls."""
        return self.text.count('"f"') - self.text.count('"name":"f","description"')


@dataclass(frozen=True)
class Case:
    """A field's value and its effect."""

    value: Any
    effect: Callable[[Seen], object]
    #: What the field needs beside it; the body without the field has it too.
    beside: Mapping[str, Any] = field(default_factory=dict)


def wire(value: Any, name: str, expected: Any = None) -> Case:
    """The worker's parameter `name` is `expected`, by default the value."""
    wanted = value if expected is None else expected

    def effect(seen: Seen) -> bool:
        found = getattr(seen.sampling, name)
        if isinstance(wanted, dict):
            found = dict(found)
        return bool(list(found) == wanted if isinstance(wanted, list) else found == wanted)

    return Case(value, effect)


def prompt(value: Any, text: str, **beside: Any) -> Case:
    """The prompt has this text."""
    return Case(value, lambda seen: text in seen.prompt, beside)


def constrained(value: Any) -> Case:
    """The worker holds the answer to a grammar."""
    return Case(value, lambda seen: seen.sampling.HasField("grammar"))


def refused(value: Any, status: int = 400) -> Case:
    """The request is refused."""
    return Case(value, lambda seen: seen.status == status)


def named_tokens(logprobs: Any) -> Case:
    """The worker is asked for these tokens' log probabilities."""
    wanted = [7, 5]
    return Case(
        wanted,
        lambda seen: list(seen.sampling.logprob_token_ids.ids) == wanted,
        {"logprobs": logprobs},
    )


_CHAT_TOOL = {"type": "function", "function": {"name": "f", "description": "looks up"}}
_TOOL = {"type": "function", "name": "f", "description": "looks up", "parameters": {}}
_INPUT_TOOL = {"name": "f", "description": "looks up", "input_schema": {"type": "object"}}
_OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}
_BYE = [{"role": "user", "content": "Bye"}]
_ONCE = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once"}]
_CONTINUED = {"messages": _ONCE, "continue_final_message": True, "add_generation_prompt": False}
_BEAMS = {"use_beam_search": True, "n": 2, "max_tokens": 6}

#: Of every API.
SAMPLING: dict[str, Case] = {
    "temperature": wire(0.5, "temperature"),
    "top_p": wire(0.5, "top_p"),
    "top_k": wire(7, "top_k"),
    "min_p": wire(0.25, "min_p"),
    "repetition_penalty": wire(1.5, "repetition_penalty"),
    "presence_penalty": wire(0.5, "presence_penalty"),
    "frequency_penalty": wire(-0.5, "frequency_penalty"),
    "seed": wire(12, "seed"),
    "min_tokens": wire(2, "min_tokens"),
    "ignore_eos": wire(True, "ignore_eos"),
    "stop_token_ids": wire([9, 11], "stop_token_ids"),
    "allowed_token_ids": Case([9], lambda seen: list(seen.sampling.allowed_token_ids.ids) == [9]),
    "bad_words": Case(["ok"], lambda seen: len(seen.sampling.bad_words_token_ids)),
    "logit_bias": wire({"9": 1.0}, "logit_bias", {9: 1.0}),
    "repetition_detection": Case(
        # Two brackets in a row.
        {"max_pattern_size": 1, "min_count": 2},
        lambda seen: "</tool_call>" not in seen.text,
        {"max_tokens": 99},
    ),
    "thinking_token_budget": Case(5, lambda seen: seen.sampling.thinking_budget.max_tokens == 5),
    "include_stop_str_in_output": Case(
        True,
        lambda seen: seen.answer.endswith("stop"),
        {"stop": "stop", "stop_sequences": ["stop"]},
    ),
    "skip_special_tokens": Case(False, lambda seen: "<|im_start|>" in seen.text),
    "spaces_between_special_tokens": Case(
        False, lambda seen: not seen.params.spaces_between_special_tokens
    ),
    "request_id": Case("mine", lambda seen: seen.headers["x-request-id"] == "mine"),
    "cache_salt": Case("salt", lambda seen: seen.asked[0].cache_salt),
    "priority": Case(3, lambda seen: seen.asked[0].priority == 3),
    "max_ttft_ms": refused(1e-6, 429),
    "max_itl_ms": refused(1e-6, 429),
    "structured_outputs": constrained({"regex": "a+"}),
    "guided_json": constrained(_OBJECT),
    "guided_regex": constrained("a+"),
    "guided_choice": constrained(["a"]),
    "guided_grammar": constrained('root ::= "a"'),
    "stream": Case(True, lambda seen: seen.headers["content-type"].startswith("text/event")),
    "model": refused("other", 404),
}
STOP = Case("stop", lambda seen: seen.answer.endswith("ok "))
#: Of chat and of completions.
OPENAI: dict[str, Case] = {
    **SAMPLING,
    "stop": STOP,
    "n": Case(2, lambda seen: len(seen.json["choices"]) == 2),
    "stream_options": Case(
        {"include_usage": True}, lambda seen: '"usage"' in seen.text, {"stream": True}
    ),
    "prompt_logprobs": wire(1, "prompt_logprobs"),
    "num_speculative_tokens": wire(3, "num_speculative_tokens"),
    "best_of": Case(3, lambda seen: len(seen.asked) == 3),
    "use_beam_search": Case(
        True, lambda seen: seen.sampling.logprobs >= 2, {"n": 2, "max_tokens": 3}
    ),
    "length_penalty": Case(-9.0, lambda seen: seen.choice["finish_reason"] == "stop", _BEAMS),
    "early_stopping": Case(True, lambda seen: len(seen.asked) == 3, _BEAMS),
    "vllm_xargs": Case({"a": 1}, lambda seen: "a" in seen.sampling.extra_args),
    "extra_args": Case({"a": 1}, lambda seen: "a" in seen.sampling.extra_args),
    "response_format": constrained({"type": "json_object"}),
    "return_token_ids": Case(True, lambda seen: seen.choice.get("token_ids")),
    "return_hidden_states": Case(
        True,
        lambda seen: seen.sampling.return_hidden_states and "hidden_states" in seen.choice,
        {"max_tokens": 99},
    ),
    "max_tokens": wire(33, "max_tokens"),
    "truncate_prompt_tokens": Case(2, lambda seen: len(seen.asked[0].token_ids) == 2),
    "stream_interval": Case(5, lambda seen: seen.params.stream_interval == 5, {"stream": True}),
    "truncation_side": Case(
        "right",
        lambda seen: seen.prompt[-1] not in "i:",
        {"truncate_prompt_tokens": 1, "add_special_tokens": False},
    ),
}
PROMPTED: dict[str, Case] = {
    "chat_template_kwargs": prompt({"mood": "good"}, "mood=good;"),
    "vllm_xargs": Case({"a": 1}, lambda seen: "a" in seen.sampling.extra_args),
}
APIS: dict[str, dict[str, Case]] = {
    "/v1/chat/completions": {
        **OPENAI,
        **PROMPTED,
        "messages": prompt(_BYE, "user:Bye;"),
        "tools": prompt([_CHAT_TOOL], "looks up"),
        "add_generation_prompt": Case(False, lambda seen: not seen.prompt.endswith("answer:")),
        "continue_final_message": Case(
            True, lambda seen: seen.prompt.endswith("Hi"), {"add_generation_prompt": False}
        ),
        "reasoning_effort": prompt("low", "effort=low;"),
        "chat_template": prompt("{{ messages[0].content }}, mine", "Hi, mine"),
        "documents": prompt([{"text": "law"}], '"law"'),
        "echo": Case(True, lambda seen: seen.answer.startswith("Once"), _CONTINUED),
        "add_special_tokens": Case(True, lambda seen: seen.prompt.startswith("<|bos|>")),
        "return_tokens_as_token_ids": Case(
            True, lambda seen: '"token_id:' in seen.text, {"logprobs": True}
        ),
        "max_completion_tokens": wire(33, "max_tokens"),
        "logprobs": Case(True, lambda seen: seen.choice["logprobs"]),
        "logprob_token_ids": named_tokens(logprobs=True),
        "top_logprobs": Case(2, lambda seen: seen.sampling.logprobs == 2, {"logprobs": True}),
        "tool_choice": Case(
            "none", lambda seen: "tools" not in seen.prompt, {"tools": [_CHAT_TOOL]}
        ),
        "parallel_tool_calls": Case(
            False, lambda seen: seen.num_calls == 1, {"tools": [_CHAT_TOOL]}
        ),
        "return_prompt_text": Case(True, lambda seen: seen.json.get("prompt_text") == seen.prompt),
        "include_reasoning": Case(False, lambda seen: not seen.choice["message"]["reasoning"]),
    },
    "/v1/completions": {
        **OPENAI,
        "prompt": prompt("Bye", "Bye"),
        "prompt_embeds": Case(as_field(torch.ones(2, 3)), lambda seen: seen.asked[0].embeds),
        "echo": Case(True, lambda seen: seen.answer.startswith("Hi")),
        "add_special_tokens": Case(False, lambda seen: not seen.prompt.startswith("<|bos|>")),
        "return_tokens_as_token_ids": Case(
            True, lambda seen: '"token_id:' in seen.text, {"logprobs": 1}
        ),
        "logprobs": wire(2, "logprobs"),
        "logprob_token_ids": named_tokens(logprobs=1),
    },
    "/inference/v1/generate": {
        **{name: SAMPLING[name] for name in ("model", "stream", "request_id", "cache_salt")},
        "priority": SAMPLING["priority"],
        "token_ids": Case([5, 6, 7], lambda seen: list(seen.asked[0].token_ids) == [5, 6, 7]),
        "sampling_params": Case({"n": 2}, lambda seen: len(seen.json["choices"]) == 2),
        "stream_options": Case(
            {"include_usage": True},
            lambda seen: '"completion_tokens"' in seen.text,
            {"stream": True},
        ),
        "output_mode": Case("text", lambda seen: "stop it" in seen.choice.get("text", "")),
        "return_token_ids": Case(True, lambda seen: seen.json["prompt_token_ids"] == [9, 11]),
        "reasoning_ended": Case(
            True,
            lambda seen: not seen.sampling.grammar.HasField("thinking"),
            {"sampling_params": {"structured_outputs": {"regex": "a+"}}},
        ),
    },
    "/v1/responses": {
        **SAMPLING,
        **PROMPTED,
        "stop": STOP,
        "input": prompt("Bye", "user:Bye;"),
        "instructions": prompt("Be brief", "system:Be brief;"),
        "max_output_tokens": wire(33, "max_tokens"),
        "tools": prompt([_TOOL], "looks up"),
        "tool_choice": Case("none", lambda seen: "tools" not in seen.prompt, {"tools": [_TOOL]}),
        "parallel_tool_calls": Case(
            False, lambda seen: seen.text.count('"function_call"') == 1, {"tools": [_TOOL]}
        ),
        "text": constrained({"format": {"type": "json_object"}}),
        "reasoning": prompt({"effort": "low"}, "effort=low;"),
        "include_reasoning": Case(False, lambda seen: "reasoning_text" not in seen.text),
        "metadata": Case({"a": "b"}, lambda seen: seen.json["metadata"] == {"a": "b"}),
        "truncation": refused("auto"),
        "include": Case(
            ["message.output_text.logprobs"], lambda seen: seen.sampling.HasField("logprobs")
        ),
        "top_logprobs": Case(
            2,
            lambda seen: seen.sampling.logprobs == 2,
            {"include": ["message.output_text.logprobs"]},
        ),
        "store": Case(False, lambda seen: seen.json.get("store") is False),
        "previous_response_id": Case(
            "resp_1", lambda seen: "previous_response_not_found" in seen.text
        ),
        # The last one: what it began goes on beside the requests that follow.
        "background": Case(True, lambda seen: seen.json.get("status") == "queued"),
    },
    "/v1/messages": {
        **SAMPLING,
        **PROMPTED,
        "stop_sequences": Case(["stop"], STOP.effect),
        "messages": prompt(_BYE, "user:Bye;"),
        "system": prompt("Be brief", "system:Be brief;"),
        "tools": prompt([_INPUT_TOOL], "looks up"),
        "tool_choice": Case(
            {"type": "none"}, lambda seen: "tools" not in seen.prompt, {"tools": [_INPUT_TOOL]}
        ),
        "thinking": prompt({"type": "disabled"}, "thinking=False;"),
        "output_config": prompt({"effort": "low"}, "effort=low;"),
        "max_tokens": wire(33, "max_tokens"),
    },
}
BODIES: dict[str, dict[str, Any]] = {
    "/inference/v1/generate": {"token_ids": [9, 11], "sampling_params": {}},
    "/v1/chat/completions": {"messages": _ONCE[:1]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": _ONCE[:1], "max_tokens": 99},
}
