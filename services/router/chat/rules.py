"""What holds for each message of a conversation, whichever API it comes by."""

from __future__ import annotations

from typing import Literal, get_args

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)


def needs_content(role: str, *, calls_tools: bool) -> bool:
    """Whether a message must have content: only an assistant's may be calls alone."""
    return role != "assistant" or not calls_tools
