"""The parts of a message, and the events of a stream, of Anthropic's API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

if TYPE_CHECKING:
    from collections.abc import Sequence


class Text(msgspec.Struct, tag_field="type", tag="text"):
    """A text block of the answer."""

    text: str


class Thinking(msgspec.Struct, tag_field="type", tag="thinking"):
    """The model's reasoning. The signature is empty: nothing is signed here."""

    thinking: str
    signature: str = ""


class ToolUse(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of one of the client's tools."""

    id: str
    name: str
    input: dict[str, Any]


Block = Text | Thinking | ToolUse


class MessageUsage(msgspec.Struct):
    """Token counts of a message. The prompt's tokens are the sum of the first three."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Message(msgspec.Struct, tag_field="type", tag="message"):
    """An answer as one object, for a client that did not ask for a stream."""

    id: str
    model: str
    content: Sequence[Block]
    usage: MessageUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    role: str = "assistant"
    #: Beyond Anthropic's API: the operator's name of the weights that all tokens come from.
    weight_version: str | UnsetType = UNSET


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """The first event: a message without content."""

    message: Message


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """An event without content."""


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """The beginning of a block, without content."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """The next part of a text."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """The next part of the reasoning."""

    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The end of the reasoning, with an empty signature."""

    signature: str = ""


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """The next part of a tool's input, as text."""

    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """The next part of the open block."""

    index: int
    delta: Delta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """The end of a block."""

    index: int


class StopDelta(msgspec.Struct):
    """The reason for which the message ended, and the version of its weights."""

    stop_reason: str | None
    stop_sequence: str | None
    weight_version: str | UnsetType = UNSET


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """The event after all blocks: the stop reason and the usage."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """The last event."""


class TokenCount(msgspec.Struct):
    """Number of prompt tokens of a conversation."""

    input_tokens: int
