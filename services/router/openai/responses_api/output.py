"""What a response is made of, and the events of a stream, as OpenAI's clients read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """A text of the answer."""

    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """A text of what the model thought."""

    text: str


class MessageOutput(msgspec.Struct, tag_field="type", tag="message"):
    """The answer."""

    id: str
    status: str
    content: Sequence[OutputText]
    role: str = "assistant"


class ReasoningOutput(msgspec.Struct, tag_field="type", tag="reasoning"):
    """What the model thought. It is not summed up: the whole text is there."""

    id: str
    status: str
    content: Sequence[ReasoningText]
    summary: tuple[()] = ()


class CallOutput(msgspec.Struct, tag_field="type", tag="function_call"):
    """A function that the client is to call."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str


Item = MessageOutput | ReasoningOutput | CallOutput
ContentText = OutputText | ReasoningText


class InputDetails(msgspec.Struct):
    """Where the prompt's KV came from."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """What the answer's tokens were."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """What a response cost."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    """Why there is no answer."""

    code: str
    message: str


class Response(msgspec.Struct):
    """The whole of it. What the request said is repeated."""

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
    previous_response_id: None = None
    service_tier: str = "default"
    truncation: str = "disabled"
    error: ResponseError | None = None
    incomplete_details: Mapping[str, str] | None = None
    usage: ResponseUsage | None = None
    completed_at: int | UnsetType = UNSET


class Event(msgspec.Struct, tag_field="type"):
    """One event of a stream."""

    sequence_number: int = 0


class _OfResponse(Event, kw_only=True):
    response: Response


class Created(_OfResponse, tag="response.created"):
    """The first."""


class InProgress(_OfResponse, tag="response.in_progress"):
    """The second."""


class Completed(_OfResponse, tag="response.completed"):
    """The last, of a whole answer."""


class Incomplete(_OfResponse, tag="response.incomplete"):
    """The last, of an answer that was cut off."""


class Failed(_OfResponse, tag="response.failed"):
    """The last, where something went wrong."""


class _OfItem(Event, kw_only=True):
    output_index: int


class ItemAdded(_OfItem, tag="response.output_item.added", kw_only=True):
    """An item begins."""

    item: Item


class ItemDone(_OfItem, tag="response.output_item.done", kw_only=True):
    """An item is whole."""

    item: Item


class _OfText(_OfItem, kw_only=True):
    item_id: str
    content_index: int = 0


class PartAdded(_OfText, tag="response.content_part.added", kw_only=True):
    """A text begins."""

    part: ContentText


class PartDone(_OfText, tag="response.content_part.done", kw_only=True):
    """A text is whole."""

    part: ContentText


class TextDelta(_OfText, tag="response.output_text.delta", kw_only=True):
    """More of the answer."""

    delta: str
    logprobs: tuple[()] = ()


class TextDone(_OfText, tag="response.output_text.done", kw_only=True):
    """All of it."""

    text: str
    logprobs: tuple[()] = ()


class ReasoningDelta(_OfText, tag="response.reasoning_text.delta", kw_only=True):
    """More of what the model thinks."""

    delta: str


class ReasoningDone(_OfText, tag="response.reasoning_text.done", kw_only=True):
    """All of it."""

    text: str


class ArgumentsDelta(_OfItem, tag="response.function_call_arguments.delta", kw_only=True):
    """More of a call's arguments."""

    item_id: str
    delta: str


class ArgumentsDone(_OfItem, tag="response.function_call_arguments.done", kw_only=True):
    """All of them."""

    item_id: str
    name: str
    arguments: str
