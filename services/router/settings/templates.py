"""Settings of chat templates: which one writes a conversation, and its usual variables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from shared.config import setting
from shared.errors import ConfigError

_VARIABLES_FLAG = "--default-chat-template-kwargs"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSettings:
    """vLLM's settings of the same names."""

    chat_template: str | None = setting(
        None, help="chat template in place of the model's own: a file, or the template itself"
    )
    default_chat_template_kwargs: str | None = setting(
        None,
        help="variables of the chat template that a request may replace, as a JSON object such as "
        '{"enable_thinking": false}',
    )

    def __post_init__(self) -> None:
        self.read_variables()

    def read_variables(self) -> dict[str, Any]:
        """Return the template's usual variables.

        Raises:
            ConfigError: they are no JSON object.
        """
        if self.default_chat_template_kwargs is None:
            return {}
        try:
            variables = json.loads(self.default_chat_template_kwargs)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{_VARIABLES_FLAG} is not valid JSON: {error}") from error
        if not isinstance(variables, dict):
            raise ConfigError(f"{_VARIABLES_FLAG} must be a JSON object")
        return variables
