"""The JSON objects of chat answers, whole and in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from services.router.openai.replies.hidden_states import (
    HiddenStates,  # noqa: TC001 read at run time by msgspec
)
from services.router.openai.replies.logprobs import (  # noqa: TC001 read at run time by msgspec
    ChatLogprobs,
    PromptToken,
)
from services.router.openai.replies.responses import FINGERPRINT, UsageBody
from services.router.parsers.events import (
    ContentDelta,
    CustomCallBegin,
    CustomCallInput,
    Finish,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegin,
)
from services.router.usage import Timings  # noqa: TC001 read at run time by msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.chat.whole import WholeAnswer, WholeCall
    from services.router.parsers.events import ChatEvent


class FunctionDelta(msgspec.Struct):
    """The part of a call in one chunk. The name is in the first chunk only."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class CustomDelta(msgspec.Struct):
    """The part of a custom tool's call in one chunk. The name is in the first chunk only."""

    name: str | UnsetType = UNSET
    input: str = ""


class ToolCallDelta(msgspec.Struct):
    """A part of the call `index`; id and type are in its first chunk only."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class Delta(msgspec.Struct):
    """The part of a message in one chunk."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    #: The same text under vLLM's present and older names.
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """A part of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET
    #: Null in a chunk without tokens.
    hidden_states: HiddenStates | UnsetType | None = UNSET
    #: In the answer's last chunk.
    weight_version: str | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    """One event of a stream."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    object: str = "chat.completion.chunk"
    #: In the chunk of the usage, or in the answers' last chunks.
    system_fingerprint: str | UnsetType = UNSET
    usage: UsageBody | UnsetType = UNSET
    timings: Timings | UnsetType | None = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


class Function(msgspec.Struct):
    """The called function. `arguments` is JSON as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """A whole call."""

    id: str
    function: Function
    type: str = "function"


class Custom(msgspec.Struct):
    """The called custom tool, and its input as text."""

    name: str
    input: str


class CustomCall(msgspec.Struct):
    """A whole call of a custom tool."""

    id: str
    custom: Custom
    type: str = "custom"


class Message(msgspec.Struct):
    """A whole message."""

    role: str
    content: str | None
    refusal: str | None = None
    #: Null of models that do not reason.
    reasoning: str | None = None
    #: The same text under vLLM's older name; set for reasoning models only.
    reasoning_content: str | UnsetType | None = UNSET
    #: Set only if there are calls.
    tool_calls: list[ToolCall | CustomCall] | UnsetType = UNSET


class Choice(msgspec.Struct):
    """A whole answer."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    hidden_states: HiddenStates | UnsetType | None = UNSET
    weight_version: str | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """All answers."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: UsageBody
    timings: Timings | None
    object: str = "chat.completion"
    system_fingerprint: str = FINGERPRINT
    prompt_token_ids: Sequence[int] | None = None
    prompt_text: str | None = None
    prompt_logprobs: list[dict[int, PromptToken] | None] | None = None


def delta_of(event: ChatEvent) -> Delta:
    """Return the part of the message that an event adds."""
    match event:
        case ContentDelta():
            return Delta(content=event.text)
        case ReasoningDelta():
            return Delta(reasoning=event.text, reasoning_content=event.text)
        case ToolCallBegin() | ToolCallArguments():
            return Delta(tool_calls=(_call_delta(event),))
        case Finish():
            return Delta()


def _call_delta(event: ToolCallBegin | ToolCallArguments) -> ToolCallDelta:
    match event:
        case CustomCallBegin():
            return ToolCallDelta(event.index, event.id, "custom", custom=CustomDelta(event.name))
        case CustomCallInput():
            return ToolCallDelta(event.index, custom=CustomDelta(input=event.text))
        case ToolCallBegin():
            return ToolCallDelta(event.index, event.id, "function", FunctionDelta(event.name))
        case ToolCallArguments():
            return ToolCallDelta(event.index, function=FunctionDelta(arguments=event.text))


def message_of(answer: WholeAnswer, role: str, *, echoed: str, reasons: bool) -> Message:
    """Return the message of a parsed answer. `reasons`: the model's reasoning is parsed."""
    message = Message(role, echoed + answer.content or None)
    if reasons:
        message.reasoning = message.reasoning_content = answer.reasoning or None
    if answer.calls:
        message.tool_calls = [_tool_call(call) for call in answer.calls]
    elif message.content is None and not answer.reasoning:
        # An empty answer still has a text.
        message.content = ""
    return message


def _tool_call(call: WholeCall) -> ToolCall | CustomCall:
    if call.is_custom:
        return CustomCall(call.id, Custom(call.name, call.arguments))
    return ToolCall(call.id, Function(call.name, call.arguments))
