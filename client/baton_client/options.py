"""What a request can say beside its prompt, and how that is written on the wire."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from baton_client import contract
from baton_client.errors import invalid
from baton_client.messages import (
    add_message,
    write_documents,
    write_template_kwargs,
    write_tool_choice,
    write_tools,
)
from baton_client.structured import grammar_message, response_format_message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from baton_client.messages import Message, Tool, ToolChoice

    Scalar = bool | int | float | str


class GenerationParams(TypedDict, total=False):
    """How to generate, with vLLM's names and meanings. Left out: the model's default."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    include_stop_str_in_output: bool | None
    ignore_eos: bool | None
    seed: int | None
    n: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    skip_special_tokens: bool | None
    #: Most tokens that are guessed per step, at workers that speculate; 0: none.
    num_speculative_tokens: int | None
    #: Arguments of logits processors that the workers run.
    extra_args: Mapping[str, Scalar | Sequence[Scalar]] | None
    #: What the answers must look like, as in vLLM's HTTP API: one of json (a JSON Schema), regex,
    #: choice (a list of strings), grammar (GBNF), json_object (True) and structural_tag.
    structured_outputs: Mapping[str, Any] | None
    #: The same as OpenAI says it: of type text, json_object or json_schema.
    response_format: Mapping[str, Any] | None


class Options(GenerationParams, total=False):
    """Keyword arguments of every request."""

    #: Needed only where more than one model is served.
    model: str
    #: Lower runs first.
    priority: int
    #: For finding the request in logs and traces; made by the client if left out.
    request_id: str
    #: Longest time for the whole request, retries included; by default the client's.
    timeout_s: float


class ChatOptions(Options, total=False):
    """Keyword arguments of a chat request."""

    #: Let the model go on with the last message instead of starting a new one.
    continue_final_message: bool
    #: What the model may call, in OpenAI's shape.
    tools: Sequence[Tool] | None
    #: auto (by default), none, required, or a function by its name.
    tool_choice: ToolChoice | None
    #: False: calls after the first are left out.
    parallel_tool_calls: bool | None
    #: False: what the model thinks is left out of what is read.
    include_reasoning: bool | None
    #: Variables of the chat template, such as {"enable_thinking": False}.
    chat_template_kwargs: Mapping[str, Any] | None
    #: Given to the chat template.
    documents: Sequence[Mapping[str, Any]] | None


REQUEST_FIELDS = frozenset(
    {
        "model",
        "priority",
        "request_id",
        "continue_final_message",
        "parallel_tool_calls",
        "include_reasoning",
    }
)
#: Options of chats that are more than a field.
_WRITERS: dict[str, Callable[[Any, Any], None]] = {
    "tools": write_tools,
    "tool_choice": write_tool_choice,
    "documents": write_documents,
    "chat_template_kwargs": write_template_kwargs,
}
_GRAMMARS: dict[str, Callable[[Any], Any]] = {
    "structured_outputs": grammar_message,
    "response_format": response_format_message,
}


def generate_request(
    prompt: str | Sequence[int], options: Mapping[str, Any]
) -> contract.GenerateRequest:
    """The message for continuing `prompt`, which is text or token ids."""
    request = contract.GenerateRequest()
    if isinstance(prompt, str):
        request.prompt.text = prompt
    else:
        _write("prompt", request.prompt.tokens.ids.extend, prompt)
        request.prompt.tokens.SetInParent()
    _write_options(request, options)
    return request


def chat_request(
    messages: str | Sequence[Message], options: Mapping[str, Any]
) -> contract.ChatRequest:
    """The message for answering a conversation; a string is one message of the user's."""
    request = contract.ChatRequest(read_answers=True)
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    for message in messages:
        _write("messages", partial(add_message, request), message)
    _write_options(request, options)
    return request


def _write_options(
    request: contract.GenerateRequest | contract.ChatRequest, options: Mapping[str, Any]
) -> None:
    for name, value in options.items():
        if value is None or name == "timeout_s":
            continue
        if name in _GRAMMARS:
            _write_grammar(request, name, value)
            continue
        if name in _WRITERS and isinstance(request, contract.ChatRequest):
            _write(name, partial(_WRITERS[name], request), value)
            continue
        target: Any = request if name in REQUEST_FIELDS else request.params
        if name not in target.DESCRIPTOR.fields_by_name:
            raise invalid(name, "there is no such option")
        _write(name, lambda value, name=name, target=target: _set(target, name, value), value)


def _write_grammar(
    request: contract.GenerateRequest | contract.ChatRequest, name: str, value: Any
) -> None:
    grammar = _GRAMMARS[name](value)
    if grammar is None:
        return
    if request.params.HasField("grammar"):
        raise invalid(name, "only one option may say what the answers look like")
    request.params.grammar.CopyFrom(grammar)


def _set(target: Any, name: str, value: Any) -> None:
    match name:
        case "logit_bias":
            for token_id, bias in value.items():
                target.logit_bias[token_id] = bias
        case "extra_args":
            for key, arg in value.items():
                target.extra_args[key].CopyFrom(_extra_arg(arg))
        case "allowed_token_ids":
            target.allowed_token_ids.ids.extend(value)
            target.allowed_token_ids.SetInParent()
        case "stop" if isinstance(value, str):
            target.stop.append(value)
        case "stop" | "bad_words" | "stop_token_ids":
            getattr(target, name).extend(value)
        case _:
            setattr(target, name, value)


def _extra_arg(value: Any) -> contract.ExtraArg:
    match value:
        case bool():
            return contract.ExtraArg(flag=value)
        case int():
            return contract.ExtraArg(integer=value)
        case float():
            return contract.ExtraArg(number=value)
        case str():
            return contract.ExtraArg(text=value)
    if not isinstance(value, list | tuple):
        raise TypeError(f"{type(value).__name__} is no argument")
    made = contract.ExtraArg()
    made.list.SetInParent()
    made.list.items.extend(_extra_arg(item) for item in value)
    return made


def _write(name: str, action: Any, value: Any) -> None:
    """protobuf checks types and ranges; its complaint gets the option's name."""
    try:
        action(value)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise invalid(name, str(error)) from error
