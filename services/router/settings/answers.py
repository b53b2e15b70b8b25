"""Settings of answers over HTTP: what they say where a request does not ask."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import setting
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """vLLM's settings of the same names."""

    response_role: str = setting("assistant", help="role of new messages in answers of chats")
    return_tokens_as_token_ids: bool = setting(
        False,
        help="log probabilities name tokens as token_id:NUMBER, unless a request says otherwise",
    )
    enable_force_include_usage: bool = setting(
        False, help="streams of chats and completions have usage in every piece"
    )

    def __post_init__(self) -> None:
        if not self.response_role:
            raise ConfigError("--response-role must not be empty")
