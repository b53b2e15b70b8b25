"""Translation of a responses request into the fields of a chat request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.router.openai.responses_api.schema import (
    AllowedTools,
    CustomTool,
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    GrammarInput,
    JsonSchemaFormat,
    MessageItem,
    NamedTool,
    ReasoningItem,
    TextPart,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from services.router.openai.responses_api.schema import (
        AnyItem,
        AnyTool,
        ContentPart,
        ResponsesBody,
    )

#: The client's names of fields, by the chat's names.
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
#: Templates leave out or refuse messages of the role `developer`.
_ROLES = {"developer": "system"}


def chat_fields(body: ResponsesBody) -> dict[str, Any]:
    """Return the fields of the chat request."""
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": _messages(body),
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stop": body.stop,
        "include_reasoning": body.include_reasoning,
        **({"logprobs": True, "top_logprobs": body.top_logprobs} if body.wants_logprobs else {}),
        **body.extras(),
        **_tool_fields(body),
    }
    if body.text is not None and body.text.format is not None:
        fields["response_format"] = _response_format(body.text.format)
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    return {name: value for name, value in fields.items() if value is not None}


def _tool_fields(body: ResponsesBody) -> dict[str, Any]:
    if not body.tools:
        return {"tool_choice": _choice(body.tool_choice)}
    return {
        "tools": [_tool(tool) for tool in body.tools],
        "tool_choice": _choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
    }


def _tool(tool: AnyTool) -> dict[str, Any]:
    given = tool.model_dump(exclude={"type"}, exclude_none=True)
    if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput):
        grammar = {"syntax": tool.format.syntax, "definition": tool.format.definition}
        given["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": tool.type, tool.type: given}


def _choice(choice: str | NamedTool | AllowedTools | None) -> Any:
    if isinstance(choice, AllowedTools):
        allowed = {"mode": choice.mode, "tools": [_choice(tool) for tool in choice.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    if isinstance(choice, NamedTool):
        return {"type": choice.type, choice.type: {"name": choice.name}}
    return choice


def _response_format(wanted: Any) -> dict[str, Any]:
    if not isinstance(wanted, JsonSchemaFormat):
        return {"type": wanted.type}
    schema = wanted.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return {"type": "json_schema", "json_schema": schema}


def _messages(body: ResponsesBody) -> list[dict[str, Any]]:
    writer = MessageWriter()
    if body.instructions:
        writer.say("system", body.instructions)
    for item in body.input:
        writer.add(item)
    return writer.messages


class MessageWriter:
    """Combines items to messages: one assistant message may consist of several items."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        #: The assistant's last message, while further items may belong to it.
        self._turn: dict[str, Any] | None = None

    def add(self, item: AnyItem) -> None:
        """Add the next item."""
        match item:
            case MessageItem(role="assistant"):
                self._answer(text_of(item.content))
            case MessageItem():
                self.say(_ROLES.get(item.role, item.role), text_of(item.content))
            case ReasoningItem():
                self._think("".join(part.text for part in item.content or item.summary or ()))
            case FunctionCallItem():
                function = {"name": item.name, "arguments": item.arguments}
                self._call({"id": item.call_id, "type": "function", "function": function})
            case CustomToolCallItem():
                custom = {"name": item.name, "input": item.input}
                self._call({"id": item.call_id, "type": "custom", "custom": custom})
            case FunctionCallOutputItem() | CustomToolCallOutputItem():
                text = text_of(item.output)
                self._add({"role": "tool", "tool_call_id": item.call_id, "content": text})

    def say(self, role: str, text: str) -> None:
        """Add a message of an author other than the assistant.

        Templates know one system message, at the beginning.
        """
        is_more = role == "system" and [m["role"] for m in self.messages] == ["system"]
        if is_more:
            self.messages[0]["content"] += f"\n\n{text}"
        else:
            self._add({"role": role, "content": text})

    def _add(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._turn = None

    def _open(self, *, unless: Iterable[str]) -> dict[str, Any]:
        """Return the assistant's open message.

        Add a new one if none is open, or if the open one has a key of `unless`.
        """
        if self._turn is None or any(self._turn.get(name) for name in unless):
            self._add({"role": "assistant", "content": ""})
            self._turn = self.messages[-1]
        return self._turn

    def _think(self, text: str) -> None:
        turn = self._open(unless=("content", "tool_calls", "reasoning_content"))
        if text:
            turn["reasoning_content"] = text

    def _answer(self, text: str) -> None:
        self._open(unless=("content", "tool_calls"))["content"] = text

    def _call(self, call: dict[str, Any]) -> None:
        self._open(unless=()).setdefault("tool_calls", []).append(call)


def text_of(parts: Sequence[ContentPart]) -> str:
    """Return the text of a message: its parts, joined as chat joins them."""
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in parts)
