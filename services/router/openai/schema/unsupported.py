"""Known fields that would change the answer, but are not offered: refused, not ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import UnsupportedError

if TYPE_CHECKING:
    import pydantic

_TEXT_ONLY = "this server takes and generates text alone"
_OLD_TOOLS = "the older form of tools: send tools and tool_choice"
#: Of vLLM's every endpoint.
REFUSED_EVERYWHERE: dict[str, str] = {
    "ec_transfer_params": "there is no encoder whose results could be handed over",
    "kv_transfer_params": "the router arranges the hand-off between workers itself",
    "media_io_kwargs": _TEXT_ONLY,
    "mm_processor_kwargs": _TEXT_ONLY,
    "watermarking": "answers carry no watermark",
}
IGNORED_EVERYWHERE: dict[str, str] = {
    "mm_payload": "there are no images",
    "return_mm_kwargs": "there are no images",
    "session_id": "prefixes are found by their content",
}
#: Of the APIs whose answers are not lists of choices.
NO_HIDDEN_STATES = {
    "return_hidden_states": "a field of completions, chats and /inference/v1/generate",
}
#: Fields that ask for something even as an empty object.
_EVEN_EMPTY = frozenset({"web_search_options"})
#: The reasons. A field says nothing if it is null, false, "", [] or {}.
REFUSED: dict[str, str] = {
    "audio": _TEXT_ONLY,
    **REFUSED_EVERYWHERE,
    "function_call": _OLD_TOOLS,
    "functions": _OLD_TOOLS,
    "guided_decoding_backend": "the workers' settings choose it",
    "guided_whitespace_pattern": "see structured_outputs.disable_any_whitespace",
    "logits_processors": "code of clients is not run; see vllm_xargs",
    "moderation": "nothing is moderated here",
    "prompt_embeds": "a field of /v1/completions; a chat has parts of this type in its messages",
    "suffix": "models here continue a prompt; they fill nothing in",
    "web_search_options": "nothing is searched here",
}


#: Fields that are accepted and change nothing.
IGNORED: dict[str, str] = {
    **IGNORED_EVERYWHERE,
    "metadata": "nothing is done with it",
    "prediction": "a guess that saves time; see num_speculative_tokens",
    "prompt_cache_key": "prefixes are found by their content; see cache_salt",
    "prompt_cache_options": "prefixes are kept for as long as there is room",
    "prompt_cache_retention": "prefixes are kept for as long as there is room",
    "return_token_offsets": "of /render: the client has no other use for them",
    "routed_experts_prompt_start": "experts of tokens are not returned",
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
    for name, reason in REFUSED.items():
        value = extra.get(name)
        is_asked = value is not None if name in _EVEN_EMPTY else bool(value)
        if is_asked and not (name == "function_call" and value == "none"):
            raise UnsupportedError(f"{name} is not supported: {reason}", param=name)
    _check_tools(extra.get("tools"), extra.get("tool_choice"))
    if extra.get("modalities") not in (None, [], ["text"]):
        raise UnsupportedError("modalities other than text are not supported", param="modalities")


def _check_tools(tools: Any, choice: Any) -> None:
    """Refuse tools in bodies of endpoints without tools."""
    if choice not in (None, "none", "auto"):
        raise UnsupportedError("tool_choice must be none or auto", param="tool_choice")
    if tools and choice != "none":
        raise UnsupportedError("tools are not supported", param="tools")
