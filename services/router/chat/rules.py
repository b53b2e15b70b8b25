"""Rules for each message of a conversation, common to all APIs."""

from __future__ import annotations

from typing import Literal, get_args

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)


def needs_content(role: str, *, calls_tools: bool) -> bool:
    """Return whether a message must have content: an assistant's with calls may have none."""
    return role != "assistant" or not calls_tools
