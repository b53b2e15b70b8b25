"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from services.router.chat.rules import Effort, Role  # noqa: TC001 read at run time
from services.router.chat.tools import MAX_NAME_CHARS, NAME_PATTERN
from services.router.openai.schema.base import GenerationBody, RequestObject
from services.router.openai.schema.custom_tool import CustomTool
from services.router.openai.schema.field_types import NumLogprobs, NumTokens  # noqa: TC001 read at run time


class ChatMessage(RequestObject):
    """One message of the conversation."""

    #: Set in OpenAI's answers that are sent back as history.
    ignored = frozenset({"annotations"})

    role: Role
    #: A string or a list of parts; services/router/openai/reading/messages.py checks it.
    content: Any = None
    name: str | None = None
    tool_call_id: str | None = None
    #: An assistant's calls; services/router/openai/reading/messages.py checks them.
    tool_calls: Any = None
    #: An assistant's reasoning. The two names mean the same; the first one has precedence.
    reasoning: str | None = None
    reasoning_content: str | None = None


class FunctionDefinition(BaseModel):
    """A function that the model may call.

    The order of the fields is that of chat templates, which also get other given fields.
    """

    model_config = ConfigDict(strict=True, extra="allow")

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=MAX_NAME_CHARS)]
    description: str | None = None
    #: A JSON Schema of type object; without one, the function takes no arguments.
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A function, as an element of `tools`."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["function"]
    function: FunctionDefinition


def _tool_tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "(custom)" if kind == "custom" else "(function)"


AnyTool = Annotated[
    Annotated[Tool, Tag("(function)")] | Annotated[CustomTool, Tag("(custom)")],
    Discriminator(_tool_tag),
]


#: The time to compile a template grows with its length.
MAX_TEMPLATE_CHARS = 256 * 1024


class ChatPromptFields(BaseModel):
    """The fields that a conversation's prompt is made of; also the fields of /tokenize."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[AnyTool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    #: The template's variable of this name; as in vLLM, before the one in `chat_template_kwargs`.
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    #: A template for this request, if the router trusts its clients' templates.
    chat_template: Annotated[str, Field(max_length=MAX_TEMPLATE_CHARS)] | None = None
    documents: list[dict[str, Any]] | None = None


class ChatBody(GenerationBody, ChatPromptFields):
    """A request for the next message of a conversation."""

    max_tokens: NumTokens | None = None
    max_completion_tokens: NumTokens | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    #: none, auto, required, or an object that names a tool;
    #: services/router/openai/reading/tools.py checks it.
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    #: false: leave out the reasoning before the answer.
    include_reasoning: bool | None = None
    #: Return the prompt as the template wrote it; in the first chunk of a stream.
    return_prompt_text: bool | None = None
