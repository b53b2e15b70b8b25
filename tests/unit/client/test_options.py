"""Options on the wire, and what is refused before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from baton_client import contract
from baton_client.errors import InvalidRequestError
from baton_client.options import GenerationParams, chat_request, generate_request
from shared.request.wire import extra_args_from_wire

if TYPE_CHECKING:
    from baton_client.messages import Message

SAMPLES: dict[str, Any] = {
    "max_tokens": 5,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.25,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "logit_bias": {7: -1.5},
    "allowed_token_ids": [1, 2],
    "bad_words": ["no"],
    "min_tokens": 2,
    "stop": ["\n"],
    "stop_token_ids": [9],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "seed": 2**63,
    "n": 2,
    "logprobs": 4,
    "prompt_logprobs": -1,
    "logprob_token_ids": [3, 4],
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "num_speculative_tokens": 0,
    "return_hidden_states": True,
    "repetition_detection": {"max_pattern_size": 9, "min_pattern_size": 2, "min_count": 3},
    "stream_interval": 4,
    "thinking_token_budget": 0,
    "best_of": 3,
    "use_beam_search": True,
    "length_penalty": 0.5,
    "early_stopping": "never",
    "extra_args": {"a": True, "b": 3, "c": 0.5, "d": "x", "e": [1, "y"], "f": []},
}


def test_every_parameter_of_the_contract_can_be_given() -> None:
    fields = set(contract.GenerationParams.DESCRIPTOR.fields_by_name)
    assert fields == {*SAMPLES, "grammar"}
    assert set(GenerationParams.__annotations__) == {
        *SAMPLES,
        "structured_outputs",
        "response_format",
    }


def test_structured_outputs_arrive_as_a_grammar() -> None:
    request = generate_request("hi", {"structured_outputs": {"regex": "a+"}})
    sent = contract.GenerateRequest.FromString(request.SerializeToString()).params
    assert [field.name for field, _ in sent.ListFields()] == ["grammar"]
    assert sent.grammar.text == "a+"


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_parameter_arrives_in_its_field(name: str) -> None:
    request = generate_request("hi", {name: SAMPLES[name]})
    sent = contract.GenerateRequest.FromString(request.SerializeToString()).params
    assert [field.name for field, _ in sent.ListFields()] == [name]
    value = getattr(sent, name)
    if name in ("allowed_token_ids", "logprob_token_ids"):
        value = list(value.ids)
    elif name == "logit_bias":
        value = dict(value)
    elif name == "early_stopping":
        value = {2: "never"}[value]
    elif name == "repetition_detection":
        value = {field.name: number for field, number in value.ListFields()}
    elif name == "extra_args":
        value = extra_args_from_wire(value)
        value = {key: list(arg) if isinstance(arg, tuple) else arg for key, arg in value.items()}
    assert value == SAMPLES[name]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"structured_outputs": {"json": {}, "disable_any_whitespace": True}}, (1, "{}", False)),
        ({"structured_outputs": {"json": "{}"}}, (1, "{}", None)),
        ({"response_format": {"type": "json_object"}}, (2, "", None)),
        ({"response_format": {"type": "text"}}, None),
    ],
)
def test_forms_are_written_in_one_way(options: dict[str, Any], expected: Any) -> None:
    params = generate_request("hi", options).params
    grammar = params.grammar
    assert params.HasField("grammar") == (expected is not None)
    if expected is not None:
        dense = grammar.any_whitespace if grammar.HasField("any_whitespace") else None
        assert (grammar.kind, grammar.text, dense) == expected


def test_a_strict_schema_is_the_usual_one() -> None:
    schema = {"type": "object"}
    for strict in (None, True, False):
        wanted = {"type": "json_schema", "json_schema": {"schema": schema, "strict": strict}}
        grammar = generate_request("hi", {"response_format": wanted}).params.grammar
        assert (grammar.HasField("strict"), grammar.strict) == (strict is False, False)
        assert grammar.param == "response_format.json_schema.schema"


def test_a_message_of_calls_needs_no_content() -> None:
    call: Any = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[Message] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c"},
    ]
    first, second = chat_request(messages, {}).messages
    [sent] = first.tool_calls
    assert (sent.id, sent.name, sent.arguments) == ("c", "f", "{}")
    assert second.tool_call_id == "c"


def test_zero_is_not_the_same_as_nothing() -> None:
    request = generate_request("hi", {"temperature": 0.0, "top_k": None})
    assert request.params.HasField("temperature")
    assert not request.params.HasField("top_k")


def test_an_empty_list_of_allowed_tokens_is_not_the_same_as_none() -> None:
    request = generate_request("hi", {"allowed_token_ids": []})
    assert request.params.HasField("allowed_token_ids")


def test_one_stop_string_needs_no_list() -> None:
    assert list(generate_request("hi", {"stop": "END"}).params.stop) == ["END"]


def test_a_prompt_may_be_token_ids() -> None:
    request = generate_request([1, 2, 3], {})
    assert request.prompt.WhichOneof("content") == "tokens"
    assert list(request.prompt.tokens.ids) == [1, 2, 3]


def test_a_string_is_one_message_of_the_user() -> None:
    [message] = chat_request("hello", {}).messages
    assert (message.role, message.content) == ("user", "hello")


def test_options_that_are_not_parameters_go_into_the_request() -> None:
    options = {"model": "m", "priority": -1, "request_id": "r", "continue_final_message": True}
    request = chat_request([{"role": "user", "content": "x", "name": "ann"}], options)
    assert (request.model, request.priority, request.request_id) == ("m", -1, "r")
    assert request.continue_final_message
    assert request.messages[0].name == "ann"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"top_q": 1}, "top_q"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"stop_token_ids": [-4]}, "stop_token_ids"),
        ({"seed": 1.5}, "seed"),
        ({"extra_args": {"a": object()}}, "extra_args"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"tools": []}, "tools"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=param) as caught:
        generate_request("hi", options)
    assert caught.value.param == param


def test_a_bad_message_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="messages"):
        chat_request([{"role": "user", "text": "x"}], {})  # type: ignore[typeddict-item, typeddict-unknown-key]  # wrong on purpose
