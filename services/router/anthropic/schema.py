"""The bodies of POST /v1/messages and /v1/messages/count_tokens.

Every field of Anthropic's API is listed here: read, refused or ignored. Pydantic reads these
annotations at run time.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, Tag

from services.router.chat.rules import Effort  # noqa: TC001 read at run time
from services.router.openai.schema.base import Body, RequestObject
from services.router.openai.schema.field_types import NumTokens, Temperature  # noqa: TC001 read at run time
from services.router.openai.schema.kinds import by_kind, only, text_as
from services.router.openai.schema.sampling import SamplingExtras
from services.router.openai.schema.unsupported import (
    IGNORED_EVERYWHERE,
    NO_HIDDEN_STATES,
    REFUSED_EVERYWHERE,
)

#: Fields that ask for more than text and the client's own tools, and why they are refused.
REFUSED: dict[str, str] = {
    **REFUSED_EVERYWHERE,
    **NO_HIDDEN_STATES,
    "container": "nothing is executed here",
    "mcp_servers": "tools are called by the client alone",
}
#: Fields that are accepted and change nothing.
IGNORED: dict[str, str] = {
    **IGNORED_EVERYWHERE,
    "cache_control": "prefixes are kept for as long as there is room, and found by their content",
    "diagnostics": "of Anthropic's own service",
    "inference_geo": "of Anthropic's own service",
    "metadata": "nothing is done with it",
    "service_tier": "see priority",
    "speed": "of Anthropic's own service",
    "user_profile_id": "nothing is done with it",
    "workspace_id": "of Anthropic's own service",
}


class Block(RequestObject):
    """A block of a message, or another object of a request."""

    ignored = frozenset({"cache_control", "citations"})


class TextBlock(Block):
    """A block of text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Block):
    """The model's reasoning in an earlier answer. The signature is ignored."""

    ignored = Block.ignored | {"signature"}

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(Block):
    """Reasoning that Anthropic's model did not show in an earlier answer; it is left out."""

    ignored = Block.ignored | {"data"}

    type: Literal["redacted_thinking"]


class ToolUseBlock(Block):
    """A call that the model made in an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


ResultBlock = Annotated[TextBlock, BeforeValidator(only("a result", "text"))]
ResultContent = Annotated[
    list[ResultBlock],
    BeforeValidator(text_as("text"), json_schema_input_type=str | list[ResultBlock]),
]
SystemBlock = Annotated[TextBlock, BeforeValidator(only("system", "text"))]
SystemContent = Annotated[
    list[SystemBlock],
    BeforeValidator(text_as("text"), json_schema_input_type=str | list[SystemBlock]),
]


class ToolResultBlock(Block):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: ResultContent | None = None
    is_error: bool | None = None


_BLOCKS = ("text", "tool_use", "tool_result", "thinking", "redacted_thinking")
ContentBlock = Annotated[
    Annotated[TextBlock, Tag("(text)")]
    | Annotated[ToolUseBlock, Tag("(tool_use)")]
    | Annotated[ToolResultBlock, Tag("(tool_result)")]
    | Annotated[ThinkingBlock, Tag("(thinking)")]
    | Annotated[RedactedThinkingBlock, Tag("(redacted_thinking)")],
    by_kind(),
    BeforeValidator(only("content", *_BLOCKS)),
]
Content = Annotated[
    list[ContentBlock],
    BeforeValidator(text_as("text"), json_schema_input_type=str | list[ContentBlock]),
]


class InputMessage(Block):
    """One turn of the conversation, or a later instruction."""

    role: Literal["user", "assistant", "system"]
    content: Content


class CustomTool(Block):
    """A tool that the client offers."""

    type: Literal["custom"] = "custom"
    name: str
    description: str | None = None
    input_schema: dict[str, Any]


class AnyChoice(Block):
    """Whether the model may or must call tools."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None


class ToolChoice(Block):
    """The one tool that must be called."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


Choice = Annotated[
    Annotated[AnyChoice, Tag("(any)")] | Annotated[ToolChoice, Tag("(tool)")],
    by_kind(same={"auto": "any", "none": "any"}),
    BeforeValidator(only("tool_choice", "auto", "any", "tool", "none")),
]


class Thinking(Block):
    """Whether the model is to reason first. The length of the reasoning is up to the model."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None


class JsonFormat(Block):
    """The answer is JSON that fits a schema."""

    # A field named `schema` would hide a method of the base class.
    model_config = ConfigDict(populate_by_name=True)

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Block):
    """Format of the answer."""

    effort: Effort | None = None
    format: JsonFormat | None = None


Tool = Annotated[CustomTool, BeforeValidator(only("a tool", "custom", default="custom"))]


class PromptFields(Body):
    """The fields that the prompt is made of."""

    ignored = frozenset({*IGNORED, *REFUSED})

    messages: Annotated[list[InputMessage], Field(min_length=1)]
    system: SystemContent | None = None
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CountTokensBody(PromptFields):
    """A request for the number of tokens of a prompt."""


class MessagesBody(PromptFields, SamplingExtras):
    """A request for the next message."""

    max_tokens: Annotated[NumTokens, Field(ge=1)]
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
