"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.router.chat.rules import Role  # noqa: TC001 read at run time
from services.router.chat.tools import MAX_NAME_CHARS, NAME_PATTERN
from services.router.openai.schema.base import GenerationBody, RequestObject
from services.router.openai.schema.field_types import NumLogprobs, NumTokens  # noqa: TC001 read at run time


class ChatMessage(RequestObject):
    """One message of the conversation."""

    #: Of answers of OpenAI's that come back as history.
    ignored = frozenset({"annotations"})

    role: Role
    #: A string or a list of parts; services/router/openai/reading/messages.py checks it.
    content: Any = None
    name: str | None = None
    tool_call_id: str | None = None
    #: Of an assistant: what it called; services/router/openai/reading/messages.py checks it.
    tool_calls: Any = None
    #: Of an assistant: what it thought. The two names mean the same; the first one counts.
    reasoning: str | None = None
    reasoning_content: str | None = None


class FunctionDefinition(BaseModel):
    """A function that the model may call. The order of the fields is that of chat templates, which
    are given whatever else is in it.
    """

    model_config = ConfigDict(strict=True, extra="allow")

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=MAX_NAME_CHARS)]
    description: str | None = None
    #: A JSON Schema of type object; without one, the function takes no arguments.
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """Something that the model may call; only functions are offered."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["function"]
    function: FunctionDefinition


#: vLLM's words: what OpenAI's models know, and `max` of others.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatPromptFields(BaseModel):
    """How a conversation becomes a prompt; also what /tokenize takes."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    #: The template's variable of this name. As in vLLM, it counts before `chat_template_kwargs`.
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None


class ChatBody(GenerationBody, ChatPromptFields):
    """A request for the next message of a conversation."""

    max_tokens: NumTokens | None = None
    max_completion_tokens: NumTokens | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    #: none, auto, required, or an object that names a function;
    #: services/router/openai/reading/tools.py checks it.
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    #: false leaves out what the model thought before it answered.
    include_reasoning: bool | None = None
