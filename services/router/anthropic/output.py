"""What a message is made of, and the events of a stream, as Anthropic's clients read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class Text(msgspec.Struct, tag_field="type", tag="text"):
    """A text of the answer."""

    text: str


class Thinking(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thought. Nobody signs it here."""

    thinking: str
    signature: str = ""


class ToolUse(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A tool that the client is to call."""

    id: str
    name: str
    input: dict[str, Any]


Block = Text | Thinking | ToolUse


class MessageUsage(msgspec.Struct):
    """What a message cost. The prompt's tokens are the sum of the first three."""

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


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """The first event: a message without content."""

    message: Message


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Says nothing."""


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The end of a thought."""

    signature: str = ""


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More of a tool's input, as text."""

    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """More of the open block."""

    index: int
    delta: Delta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """A block is whole."""

    index: int


class StopDelta(msgspec.Struct):
    """Why the message ended."""

    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """All blocks are whole."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """The last event."""


class TokenCount(msgspec.Struct):
    """How long the prompt is that a conversation becomes."""

    input_tokens: int
