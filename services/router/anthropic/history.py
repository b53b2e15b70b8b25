"""Check of a conversation's turns against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.anthropic.schema import ToolResultBlock, ToolUseBlock
from services.router.openai.errors import FieldError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.anthropic.schema import InputMessage


def check_results(messages: Sequence[InputMessage]) -> None:
    """Refuse results of calls that the assistant's turn before them does not contain.

    Consecutive messages of one side are one turn, as in Anthropic's API.

    Raises:
        FieldError: a result has no call, or a call has two results.
    """
    unanswered: set[str] = set()
    is_answering = False
    for i, message in enumerate(messages):
        if message.role == "assistant":
            if is_answering:
                unanswered = set()
            is_answering = False
            unanswered |= {b.id for b in message.content if isinstance(b, ToolUseBlock)}
            continue
        is_answering = is_answering or message.role == "user"
        for j, block in enumerate(message.content):
            if not isinstance(block, ToolResultBlock):
                continue
            if block.tool_use_id not in unanswered:
                raise _no_call(block, f"messages[{i}].content[{j}].tool_use_id")
            unanswered.remove(block.tool_use_id)


def _no_call(block: ToolResultBlock, param: str) -> FieldError:
    message = (
        f"{param}: {block.tool_use_id[:64]!r} is the id of no tool_use without a tool_result in "
        "the assistant's message before it"
    )
    return FieldError(message, param=param)
