"""The options of a request, and their wire format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from baton_client import checks, contract
from baton_client.embeds import Embeds
from baton_client.errors import invalid
from baton_client.extra_args import write_extra_args
from baton_client.fields import out_of_range, write_integers, write_scalar
from baton_client.messages import (
    add_message,
    write_documents,
    write_template_kwargs,
    write_tool_choice,
    write_tools,
)
from baton_client.structured import grammar_message, response_format_message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton_client.messages import Message, Tool, ToolChoice

    Scalar = bool | int | float | str


class GenerationParams(TypedDict, total=False):
    """Sampling parameters with vLLM's names and meanings. If left out: the model's default."""

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
    #: The alternatives of the answer's tokens by name, with `logprobs`.
    logprob_token_ids: Sequence[int] | None
    #: Return the hidden states behind the answers' tokens; the cluster must allow it.
    return_hidden_states: bool | None
    skip_special_tokens: bool | None
    #: With skip_special_tokens=False: False joins them where the decoder would write spaces.
    spaces_between_special_tokens: bool | None
    #: Maximum of draft tokens per step, on workers that speculate; 0: none.
    num_speculative_tokens: int | None
    #: Arguments of logits processors on the workers.
    extra_args: Mapping[str, Scalar | Sequence[Scalar]] | None
    #: End an answer that repeats itself: max_pattern_size, min_pattern_size and min_count.
    repetition_detection: Mapping[str, int] | None
    #: Most tokens of reasoning before the answer; -1: any number.
    thinking_token_budget: int | None
    #: Least number of tokens per piece of a stream, but for the first and the last.
    stream_interval: int | None
    #: Generate this number of answers and return the `n` most likely ones, at the end; with beam
    #: search: the number of beams.
    best_of: int | None
    use_beam_search: bool | None
    length_penalty: float | None
    early_stopping: Literal[True, False, "never"] | None
    #: Format of the answers, as in vLLM's HTTP API: one of json (a JSON Schema), regex, choice (a
    #: list of strings), grammar (GBNF or Lark), json_object (True) and structural_tag.
    structured_outputs: Mapping[str, Any] | None
    #: The same in OpenAI's form: of type text, json_object or json_schema.
    response_format: Mapping[str, Any] | None


class Options(GenerationParams, total=False):
    """Keyword arguments of every request."""

    #: Needed only if more than one model is served.
    model: str
    #: Lower runs first.
    priority: int
    #: Id of the request in logs and traces; made by the client if left out.
    request_id: str
    #: Keep at most this number of the prompt's tokens; -1: as many as leave room for an answer.
    truncate_prompt_tokens: int | None
    #: The side that is cut off; by default the left.
    truncation_side: Literal["left", "right"] | None
    #: Longest time of the whole request, retries included; by default the client's.
    timeout_s: float


class ChatOptions(Options, total=False):
    """Keyword arguments of a chat request."""

    #: Let the model continue the last message instead of starting a new one.
    continue_final_message: bool
    #: Tools that the model may call, in OpenAI's form.
    tools: Sequence[Tool] | None
    #: auto (the default), none, required, or a function by its name.
    tool_choice: ToolChoice | None
    #: False: calls after the first are dropped.
    parallel_tool_calls: bool | None
    #: False: the model's reasoning is dropped.
    include_reasoning: bool | None
    #: The chat template's variable of this name: none, minimal, low, medium, high, xhigh or max.
    reasoning_effort: str | None
    #: Variables of the chat template, such as {"enable_thinking": False}.
    chat_template_kwargs: Mapping[str, Any] | None
    #: Documents for the chat template.
    documents: Sequence[Mapping[str, Any]] | None


REQUEST_FIELDS = frozenset(
    {
        "model",
        "priority",
        "request_id",
        "continue_final_message",
        "parallel_tool_calls",
        "include_reasoning",
        "reasoning_effort",
        "truncate_prompt_tokens",
    }
)
#: Options of chats that are not written as a single field.
_CHAT_WRITERS: dict[str, Callable[[Any, Any], None]] = {
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
    prompt: str | Sequence[int] | Embeds, options: Mapping[str, Any]
) -> contract.GenerateRequest:
    """Return the message for continuing `prompt`, which is text, token ids or embeddings.

    Raises:
        InvalidRequestError: a value is not of its option's type; `param` names it.
    """
    request = contract.GenerateRequest()
    if isinstance(prompt, Embeds):
        prompt.write(request.prompt)
    elif isinstance(prompt, str):
        request.prompt.text = checks.text("prompt", prompt)
    else:
        write_integers(request.prompt.tokens.ids, prompt, param="prompt")
        request.prompt.tokens.SetInParent()
    _write_options(request, options)
    return request


def chat_request(
    messages: str | Sequence[Message], options: Mapping[str, Any]
) -> contract.ChatRequest:
    """Return the message for answering a conversation; a string is one user message.

    Raises:
        InvalidRequestError: a value is not of its option's type; `param` names it.
    """
    request = contract.ChatRequest(read_answers=True)
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    for i, message in enumerate(checks.items("messages", messages)):
        add_message(request, message, f"messages[{i}]")
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
        elif name in _CHAT_WRITERS and isinstance(request, contract.ChatRequest):
            _CHAT_WRITERS[name](request, value)
        elif name in _PARAM_WRITERS:
            _PARAM_WRITERS[name](request.params, value)
        elif name == "truncation_side":
            request.truncation_side = _side(value)
        else:
            target = request if name in REQUEST_FIELDS else request.params
            write_scalar(target, name, value, param=name)


def _write_grammar(
    request: contract.GenerateRequest | contract.ChatRequest, name: str, value: Any
) -> None:
    grammar = _GRAMMARS[name](value)
    if grammar is None:
        return
    if request.params.HasField("grammar"):
        raise invalid(name, "only one option may set the format of the answers")
    request.params.grammar.CopyFrom(grammar)


def _write_seed(params: contract.GenerationParams, value: Any) -> None:
    """Write a seed: 64 bits, signed or unsigned; the contract has them unsigned.

    As in vLLM, -1 means no seed.
    """
    seed = checks.integer("seed", value)
    if not -(2**63) <= seed < 2**64:
        raise invalid("seed", "it must have at most 64 bits")
    if seed != -1:
        params.seed = seed % 2**64


def _write_top_k(params: contract.GenerationParams, value: Any) -> None:
    """Write top_k: -1 turns it off in vLLM, 0 in the contract."""
    top_k = checks.integer("top_k", value)
    write_scalar(params, "top_k", 0 if top_k == -1 else top_k, param="top_k")


def _write_budget(params: contract.GenerationParams, value: Any) -> None:
    """Write a budget of reasoning: -1 is none in vLLM, as nothing is in the contract."""
    budget = checks.integer("thinking_token_budget", value)
    if budget != -1:
        write_scalar(params, "thinking_token_budget", budget, param="thinking_token_budget")


def _side(value: Any) -> str:
    if not isinstance(value, str) or value not in {"left", "right"}:
        raise invalid("truncation_side", "it must be left or right")
    return value


def _write_early_stopping(params: contract.GenerationParams, value: Any) -> None:
    # 0 and 1 equal False and True, and are neither.
    if not (isinstance(value, bool) or (isinstance(value, str) and value == "never")):
        raise invalid("early_stopping", "it must be true, false or never")
    if value:
        name = "NEVER" if value == "never" else "FIRST"
        params.early_stopping = f"EARLY_STOPPING_{name}"  # type: ignore[assignment]  # by name


def _write_logit_bias(params: contract.GenerationParams, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise invalid("logit_bias", "it must be a mapping of token ids to numbers")
    for key, bias in value.items():
        token_id = checks.integer("logit_bias", key)
        try:
            params.logit_bias[token_id] = checks.number_or_infinity("logit_bias", bias)
        except ValueError as error:
            raise out_of_range("logit_bias") from error


def _write_allowed(params: contract.GenerationParams, value: Any) -> None:
    write_integers(params.allowed_token_ids.ids, value, param="allowed_token_ids")
    params.allowed_token_ids.SetInParent()


def _write_named(params: contract.GenerationParams, value: Any) -> None:
    write_integers(params.logprob_token_ids.ids, value, param="logprob_token_ids")
    params.logprob_token_ids.SetInParent()


def _write_stop(params: contract.GenerationParams, value: Any) -> None:
    params.stop.extend(checks.texts("stop", [value] if isinstance(value, str) else value))


def _write_bad_words(params: contract.GenerationParams, value: Any) -> None:
    params.bad_words.extend(checks.texts("bad_words", value))


def _write_stop_tokens(params: contract.GenerationParams, value: Any) -> None:
    write_integers(params.stop_token_ids, value, param="stop_token_ids")


def _write_repetition(params: contract.GenerationParams, value: Any) -> None:
    params.repetition_detection.SetInParent()
    for name, number in checks.mapping("repetition_detection", value).items():
        param = f"repetition_detection.{name}"
        write_scalar(params.repetition_detection, name, number, param=param)


#: Parameters that are more than one number, flag or string.
_PARAM_WRITERS: dict[str, Callable[[Any, Any], None]] = {
    "seed": _write_seed,
    "top_k": _write_top_k,
    "thinking_token_budget": _write_budget,
    "early_stopping": _write_early_stopping,
    "logit_bias": _write_logit_bias,
    "allowed_token_ids": _write_allowed,
    "logprob_token_ids": _write_named,
    "stop": _write_stop,
    "bad_words": _write_bad_words,
    "stop_token_ids": _write_stop_tokens,
    "extra_args": write_extra_args,
    "repetition_detection": _write_repetition,
}
