"""What a request can say beside its prompt, and how that is written on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from baton_client import contract
from baton_client.errors import invalid
from baton_client.structured import grammar_message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
    #: What the answers must look like, as in vLLM's HTTP API: one of json (a JSON Schema), regex,
    #: choice (a list of strings), grammar (GBNF), json_object (True) and structural_tag.
    structured_outputs: Mapping[str, Any] | None


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


class Message(TypedDict):
    """One message of a conversation; `role` is system, user, assistant or tool."""

    role: str
    content: str
    name: NotRequired[str]


REQUEST_FIELDS = frozenset({"model", "priority", "request_id", "continue_final_message"})


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
    request = contract.ChatRequest()
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    for message in messages:
        _write("messages", lambda message: request.messages.add(**message), message)
    _write_options(request, options)
    return request


def _write_options(
    request: contract.GenerateRequest | contract.ChatRequest, options: Mapping[str, Any]
) -> None:
    for name, value in options.items():
        if value is None or name == "timeout_s":
            continue
        target: Any = request if name in REQUEST_FIELDS else request.params
        if name == "structured_outputs":
            _write(name, request.params.grammar.MergeFrom, grammar_message(value))
            continue
        if name not in target.DESCRIPTOR.fields_by_name:
            raise invalid(name, "there is no such option")
        _write(name, lambda value, name=name, target=target: _set(target, name, value), value)


def _set(target: Any, name: str, value: Any) -> None:
    match name:
        case "logit_bias":
            for token_id, bias in value.items():
                target.logit_bias[token_id] = bias
        case "allowed_token_ids":
            target.allowed_token_ids.ids.extend(value)
            target.allowed_token_ids.SetInParent()
        case "stop" if isinstance(value, str):
            target.stop.append(value)
        case "stop" | "bad_words" | "stop_token_ids":
            getattr(target, name).extend(value)
        case _:
            setattr(target, name, value)


def _write(name: str, action: Any, value: Any) -> None:
    """protobuf checks types and ranges; its complaint gets the option's name."""
    try:
        action(value)
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid(name, str(error)) from error
