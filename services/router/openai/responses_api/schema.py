"""The body of POST /v1/responses.

Every field of OpenAI's API is listed here: read, refused or ignored. Pydantic reads these
annotations at run time.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from services.router.chat.rules import Effort  # noqa: TC001 read at run time
from services.router.openai.schema.base import Body, RequestObject
from services.router.openai.schema.field_types import (  # noqa: TC001 read at run time
    NumLogprobs,
    NumTokens,
    Temperature,
)
from services.router.openai.schema.kinds import by_kind, only, text_as
from services.router.openai.schema.sampling import SamplingExtras
from services.router.openai.schema.unsupported import (
    IGNORED_EVERYWHERE,
    NO_HIDDEN_STATES,
    REFUSED_EVERYWHERE,
)

#: Fields that ask for more than an answer to this request, and why they are refused.
REFUSED: dict[str, str] = {
    **REFUSED_EVERYWHERE,
    **NO_HIDDEN_STATES,
    "enable_response_messages": "the answer's items are all there is",
    "previous_input_messages": "send the whole conversation as input",
    "conversation": "conversations are not stored here; send the whole conversation as input",
    "background_options": "responses in the background have no options",
    "prompt": "prompts are not stored here; send instructions and input",
    "context_management": "the conversation is never compacted here",
    "moderation": "nothing is moderated here",
}
#: The value of `include` that asks for log probabilities; others ask for data of OpenAI's tools.
LOGPROBS = "message.output_text.logprobs"
Included = Literal[
    "message.output_text.logprobs",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
#: Fields that are accepted and change nothing.
IGNORED: dict[str, str] = {
    **IGNORED_EVERYWHERE,
    "access_programs": "of OpenAI's own service",
    "image": "there are no images",
    "max_tool_calls": "counts calls of OpenAI's own tools; functions are the client's to call",
    "prompt_cache_key": "prefixes are found by their content; see cache_salt",
    "prompt_cache_options": "prefixes are kept for as long as there is room",
    "prompt_cache_retention": "prefixes are kept for as long as there is room",
    "safety_identifier": "nothing is done with it",
    "service_tier": "see priority",
    "stream_options": "there is no obfuscation; usage always comes",
    "user": "only repeated in the answer",
}


class InputObject(RequestObject):
    """An object of a message, an item, or an option."""


class Item(InputObject):
    """An item of the input. Items of earlier answers have the fields that answers set."""

    ignored = frozenset({"id", "status", "phase"})


class TextPart(InputObject):
    """A text of the user or of the model."""

    ignored = frozenset({"annotations", "logprobs", "prompt_cache_breakpoint"})

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class Refusal(InputObject):
    """A refusal that a model of OpenAI's wrote instead of an answer."""

    type: Literal["refusal"]
    refusal: str


_TEXTS = ("input_text", "output_text", "text")
ContentPart = Annotated[
    Annotated[TextPart, Tag("(text)")] | Annotated[Refusal, Tag("(refusal)")],
    by_kind(same=dict.fromkeys(_TEXTS, "text")),
    BeforeValidator(only("content", *_TEXTS, "refusal")),
]
Content = Annotated[
    list[ContentPart],
    BeforeValidator(text_as("input_text"), json_schema_input_type=str | list[ContentPart]),
]
OutputPart = Annotated[TextPart, BeforeValidator(only("output", *_TEXTS))]
Output = Annotated[
    list[OutputPart],
    BeforeValidator(text_as("input_text"), json_schema_input_type=str | list[OutputPart]),
]


class MessageItem(Item):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(Item):
    """A call that the model made in an earlier answer."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionCallOutputItem(Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Output


class CustomToolCallItem(Item):
    """A call of a custom tool that the model made in an earlier answer."""

    ignored = Item.ignored | {"caller", "namespace"}

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str


class CustomToolCallOutputItem(Item):
    """The result of a call of a custom tool."""

    ignored = Item.ignored | {"caller"}

    type: Literal["custom_tool_call_output"]
    call_id: str
    output: Output


class ReasoningItem(Item):
    """The model's reasoning in an earlier answer; encrypted reasoning cannot be read here."""

    ignored = Item.ignored | {"encrypted_content"}

    type: Literal["reasoning"]
    content: list[TextPart] | None = None
    summary: list[TextPart] | None = None


_ITEMS = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
)
AnyItem = Annotated[
    Annotated[MessageItem, Tag("(message)")]
    | Annotated[FunctionCallItem, Tag("(function_call)")]
    | Annotated[FunctionCallOutputItem, Tag("(function_call_output)")]
    | Annotated[CustomToolCallItem, Tag("(custom_tool_call)")]
    | Annotated[CustomToolCallOutputItem, Tag("(custom_tool_call_output)")]
    | Annotated[ReasoningItem, Tag("(reasoning)")],
    by_kind("message"),
    BeforeValidator(only("an item", *_ITEMS, default="message")),
]


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class FunctionTool(InputObject):
    """A function that the client offers."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextInput(InputObject):
    """Any text as input of a custom tool."""

    type: Literal["text"]


class GrammarInput(InputObject):
    """A text that a grammar describes, as input of a custom tool."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str


InputFormat = Annotated[
    Annotated[TextInput, Tag("(text)")] | Annotated[GrammarInput, Tag("(grammar)")],
    by_kind(),
    BeforeValidator(only("a format", "text", "grammar")),
]


class CustomTool(InputObject):
    """A tool of the client whose input is a text."""

    ignored = frozenset({"allowed_callers", "defer_loading"})

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: InputFormat | None = None


AnyTool = FunctionTool | CustomTool
_KINDS = ("function", "custom")
Tool = Annotated[
    Annotated[FunctionTool, Tag("(function)")] | Annotated[CustomTool, Tag("(custom)")],
    by_kind(),
    BeforeValidator(only("a tool", *_KINDS)),
]


class NamedTool(InputObject):
    """A tool, by its name; as a choice, the one that must be called."""

    type: Literal["function", "custom"]
    name: str


class AllowedTools(InputObject):
    """Some of the tools, which alone count."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Annotated[NamedTool, BeforeValidator(only("an allowed tool", *_KINDS))]],
        Field(min_length=1),
    ]


_CHOICES = (*_KINDS, "allowed_tools")


def _check_choice(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return only("tool_choice", *_CHOICES)(value)


def _choice_tag(value: Any) -> str:
    if isinstance(value, str):
        return "(mode)"
    kind = value.get("type") if isinstance(value, dict) else value.type
    return "(allowed_tools)" if kind == "allowed_tools" else "(tool)"


Mode = Literal["none", "auto", "required"]
Choice = Annotated[
    Annotated[Mode, Tag("(mode)")]
    | Annotated[NamedTool, Tag("(tool)")]
    | Annotated[AllowedTools, Tag("(allowed_tools)")],
    Discriminator(_choice_tag),
    BeforeValidator(_check_choice),
]


class TextFormat(InputObject):
    """Format of the answer's text."""

    type: Literal["text"]


class JsonFormat(InputObject):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(InputObject):
    """JSON that a schema describes."""

    # A field named `schema` would hide a method of the base class.
    model_config = ConfigDict(populate_by_name=True)

    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


Format = Annotated[
    Annotated[TextFormat, Tag("(text)")]
    | Annotated[JsonFormat, Tag("(json_object)")]
    | Annotated[JsonSchemaFormat, Tag("(json_schema)")],
    by_kind(),
    BeforeValidator(only("a format", "text", "json_object", "json_schema")),
]


class TextOptions(InputObject):
    """Options of the answer's text."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(InputObject):
    """Amount of reasoning, for templates that take it."""

    #: The older name of `summary`.
    ignored = frozenset({"generate_summary"})

    effort: Effort | None = None
    summary: str | None = None


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]


class ResponsesBody(Body, SamplingExtras):
    """A request for a response."""

    ignored = frozenset({*IGNORED, *REFUSED})

    input: Annotated[
        list[AnyItem],
        Field(min_length=1),
        BeforeValidator(_as_items, json_schema_input_type=str | list[AnyItem]),
    ]
    instructions: str | None = None
    max_output_tokens: Annotated[NumTokens, Field(ge=1)] | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    #: false: no items of reasoning.
    include_reasoning: bool | None = None
    metadata: Metadata | None = None
    truncation: Literal["disabled", "auto"] | None = None
    #: Only message.output_text.logprobs asks for something that there is.
    include: list[Included] | None = None
    #: Alternatives per token, if `include` asks for log probabilities.
    top_logprobs: NumLogprobs | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the texts of the answer come with log probabilities."""
        return LOGPROBS in (self.include or ())

    stream: bool | None = None
    #: Where responses are stored, all are, unless this is false.
    store: bool | None = None
    #: The response that the input goes on from.
    previous_response_id: str | None = None
    #: Return at once; the response is fetched later.
    background: bool | None = None
    #: Beyond OpenAI's API, as in chat.
    stop: Any = None
