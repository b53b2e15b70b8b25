"""Fields that are known and would change the answer, but are not offered: refused, not ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import UnsupportedError

if TYPE_CHECKING:
    import pydantic

#: Refused as soon as they say anything; null, false, "", [] and {} say nothing.
_REFUSED = (
    "audio",
    "chat_template",
    "function_call",
    "functions",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "logits_processors",
    "mm_processor_kwargs",
    "prompt_embeds",
    "suffix",
    "truncate_prompt_tokens",
    "web_search_options",
)


def refuse_unsupported(body: pydantic.BaseModel) -> None:
    """Check the fields of `body` that its schema does not have.

    Raises:
        UnsupportedError: one of them asks for a feature that is not offered.
        FieldError: one of them makes no sense.
    """
    extra = body.model_extra or {}
    for name in _REFUSED:
        if extra.get(name) and not (name == "function_call" and extra[name] == "none"):
            raise UnsupportedError(f"{name} is not supported", param=name)
    _check_tools(extra.get("tools"), extra.get("tool_choice"))
    if extra.get("modalities") not in (None, [], ["text"]):
        raise UnsupportedError("modalities other than text are not supported", param="modalities")


def _check_tools(tools: Any, choice: Any) -> None:
    """Of bodies without these fields; chats have them."""
    if choice not in (None, "none", "auto"):
        raise UnsupportedError("tool_choice must be none or auto", param="tool_choice")
    if tools and choice != "none":
        raise UnsupportedError("tools are not supported", param="tools")
