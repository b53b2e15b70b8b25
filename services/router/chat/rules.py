"""Rules for each message of a conversation, common to all APIs."""

from __future__ import annotations

from typing import Literal, get_args

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)
#: Values of vLLM: those of OpenAI's models, and `max` of others.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[str, ...] = get_args(Effort)


def needs_content(role: str, *, calls_tools: bool) -> bool:
    """Return whether a message must have content: an assistant's with calls may have none."""
    return role != "assistant" or not calls_tools
