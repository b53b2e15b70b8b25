"""The parts of a response, and the events of a stream, of OpenAI's Responses API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from services.router.openai.replies.logprobs import ChatTokenLogprobs


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """A text of the answer."""

    text: str
    annotations: tuple[()] = ()
    logprobs: Sequence[ChatTokenLogprobs] = ()


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """A text of the reasoning."""

    text: str


class MessageOutput(msgspec.Struct, tag_field="type", tag="message"):
    """The message of the answer."""

    id: str
    status: str
    content: Sequence[OutputText]
    role: str = "assistant"


class ReasoningOutput(msgspec.Struct, tag_field="type", tag="reasoning"):
    """The model's reasoning: the whole text, not a summary."""

    id: str
    status: str
    content: Sequence[ReasoningText]
    summary: tuple[()] = ()


class CallOutput(msgspec.Struct, tag_field="type", tag="function_call"):
    """A call of one of the client's functions."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str


class CustomCallOutput(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    """A call of one of the client's custom tools."""

    id: str
    call_id: str
    name: str
    input: str
    status: str


Item = MessageOutput | ReasoningOutput | CallOutput | CustomCallOutput
ContentText = OutputText | ReasoningText


class InputDetails(msgspec.Struct):
    """Sources of the prompt's KV."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """Kinds of the answer's tokens."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    """The error for which there is no answer."""

    code: str
    message: str


class Response(msgspec.Struct):
    """The whole response. It repeats fields of the request."""

    id: str
    created_at: int
    model: str
    status: str
    output: Sequence[Item]
    instructions: str | None
    max_output_tokens: int | None
    metadata: Mapping[str, str]
    parallel_tool_calls: bool
    reasoning: Mapping[str, Any]
    temperature: float | None
    text: Mapping[str, Any]
    tool_choice: Any
    tools: Sequence[Mapping[str, Any]]
    top_p: float | None
    user: str | None
    object: str = "response"
    background: bool = False
    store: bool = False
    previous_response_id: str | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    service_tier: str = "default"
    truncation: str = "disabled"
    error: ResponseError | None = None
    incomplete_details: Mapping[str, str] | None = None
    usage: ResponseUsage | None = None
    completed_at: int | UnsetType = UNSET
    #: The operator's name of the weights that all tokens come from.
    weight_version: str | UnsetType = UNSET


class Event(msgspec.Struct, tag_field="type"):
    """One event of a stream."""

    sequence_number: int = 0


class _OfResponse(Event, kw_only=True):
    response: Response


class Created(_OfResponse, tag="response.created"):
    """The first event."""


class Queued(_OfResponse, tag="response.queued"):
    """The second event of a response in the background."""


class InProgress(_OfResponse, tag="response.in_progress"):
    """The event before those of the answer."""


class Completed(_OfResponse, tag="response.completed"):
    """The last event of a complete answer."""


class Incomplete(_OfResponse, tag="response.incomplete"):
    """The last event of an answer that was cut off."""


class Failed(_OfResponse, tag="response.failed"):
    """The last event after an error."""


class _OfItem(Event, kw_only=True):
    output_index: int


class ItemAdded(_OfItem, tag="response.output_item.added", kw_only=True):
    """The beginning of an item."""

    item: Item


class ItemDone(_OfItem, tag="response.output_item.done", kw_only=True):
    """The end of an item, with the whole item."""

    item: Item


class _OfText(_OfItem, kw_only=True):
    item_id: str
    content_index: int = 0


class PartAdded(_OfText, tag="response.content_part.added", kw_only=True):
    """The beginning of a text."""

    part: ContentText


class PartDone(_OfText, tag="response.content_part.done", kw_only=True):
    """The end of a text, with the whole text."""

    part: ContentText


class TextDelta(_OfText, tag="response.output_text.delta", kw_only=True):
    """The next part of the answer's text."""

    delta: str
    logprobs: Sequence[ChatTokenLogprobs] = ()


class TextDone(_OfText, tag="response.output_text.done", kw_only=True):
    """The end of the answer's text, with the whole text."""

    text: str
    logprobs: Sequence[ChatTokenLogprobs] = ()


class ReasoningDelta(_OfText, tag="response.reasoning_text.delta", kw_only=True):
    """The next part of the reasoning."""

    delta: str


class ReasoningDone(_OfText, tag="response.reasoning_text.done", kw_only=True):
    """The end of the reasoning, with the whole text."""

    text: str


class ArgumentsDelta(_OfItem, tag="response.function_call_arguments.delta", kw_only=True):
    """The next part of a call's arguments."""

    item_id: str
    delta: str


class ArgumentsDone(_OfItem, tag="response.function_call_arguments.done", kw_only=True):
    """The end of a call's arguments, with all of them."""

    item_id: str
    name: str
    arguments: str


class InputDelta(_OfItem, tag="response.custom_tool_call_input.delta", kw_only=True):
    """The next part of a custom tool's input."""

    item_id: str
    delta: str


class InputDone(_OfItem, tag="response.custom_tool_call_input.done", kw_only=True):
    """The end of a custom tool's input, with all of it."""

    item_id: str
    input: str
