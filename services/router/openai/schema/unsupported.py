"""Known fields that would change the answer, but are not offered: refused, not ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import UnsupportedError

if TYPE_CHECKING:
    import pydantic

_ANYTHING = "as soon as it says anything"
#: Fields that ask for something even as an empty object.
_EVEN_EMPTY = frozenset({"web_search_options"})
#: Values for which a field is refused; usually all but null, false, "", [] and {}.
REFUSED: dict[str, str] = {
    "audio": _ANYTHING,
    "chat_template": _ANYTHING,
    "function_call": _ANYTHING,
    "functions": _ANYTHING,
    "guided_decoding_backend": _ANYTHING,
    "guided_whitespace_pattern": _ANYTHING,
    "logits_processors": _ANYTHING,
    "mm_processor_kwargs": _ANYTHING,
    "moderation": _ANYTHING,
    "prompt_embeds": _ANYTHING,
    "suffix": _ANYTHING,
    "truncate_prompt_tokens": _ANYTHING,
    "web_search_options": "even where it is an empty object",
}


#: Fields that are accepted and change nothing.
IGNORED: dict[str, str] = {
    "metadata": "nothing is done with it",
    "prediction": "a guess that saves time; see num_speculative_tokens",
    "prompt_cache_key": "prefixes are found by their content; see cache_salt",
    "prompt_cache_options": "prefixes are kept for as long as there is room",
    "prompt_cache_retention": "prefixes are kept for as long as there is room",
    "safety_identifier": "nothing is done with it",
    "service_tier": "see priority",
    "store": "nothing is stored",
    "user": "nothing is done with it",
}


def refuse_unsupported(body: pydantic.BaseModel) -> None:
    """Check the fields of `body` that its schema does not have.

    Raises:
        UnsupportedError: one of them asks for a feature that is not offered.
        FieldError: one of them makes no sense.
    """
    extra = body.model_extra or {}
    for name in REFUSED:
        value = extra.get(name)
        is_asked = value is not None if name in _EVEN_EMPTY else bool(value)
        if is_asked and not (name == "function_call" and value == "none"):
            raise UnsupportedError(f"{name} is not supported", param=name)
    _check_tools(extra.get("tools"), extra.get("tool_choice"))
    if extra.get("modalities") not in (None, [], ["text"]):
        raise UnsupportedError("modalities other than text are not supported", param="modalities")


def _check_tools(tools: Any, choice: Any) -> None:
    """Refuse tools in bodies of endpoints without tools."""
    if choice not in (None, "none", "auto"):
        raise UnsupportedError("tool_choice must be none or auto", param="tool_choice")
    if tools and choice != "none":
        raise UnsupportedError("tools are not supported", param="tools")
