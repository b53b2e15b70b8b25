"""The forms of a prompt in the calls of `LLM`: vLLM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeGuard

from shared.engine.offline.embeds import read_embeds_prompt
from shared.errors import InvalidRequestError
from shared.request.prompt_embeds import PARAM, known_tokens, shown_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.request.prompt_embeds import PromptEmbeds

    #: A text, token ids, or a mapping with `prompt`, `prompt_token_ids` or `prompt_embeds`, and
    #: optional `cache_salt`.
    Prompt = str | Sequence[int] | Mapping[str, Any]

_KEYS = ("prompt", "prompt_token_ids", PARAM, "prompt_is_token_ids", "cache_salt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPrompt:
    """One prompt. `text` is the caller's text, None for token ids alone."""

    text: str | None
    #: With NO_TOKEN where `embeds` has a row.
    token_ids: tuple[int, ...]
    cache_salt: bytes = b""
    embeds: PromptEmbeds | None = None

    @property
    def known_ids(self) -> tuple[int, ...]:
        """The tokens of the prompt."""
        return self.token_ids if self.embeds is None else known_tokens(self.token_ids)

    @property
    def shown_ids(self) -> tuple[int, ...]:
        """The prompt's ids for the caller: 0 where it gave an embedding, as in vLLM."""
        return self.token_ids if self.embeds is None else shown_ids(self.token_ids)


def read_prompts(
    prompts: Prompt | Sequence[Prompt], encode: Callable[[str], Sequence[int]]
) -> list[ReadPrompt]:
    """Return one prompt or several, each in any form.

    Raises:
        InvalidRequestError: a prompt has none of these forms; `param` names the key.
    """
    if isinstance(prompts, str | Mapping) or _is_ids(prompts):
        return [_read(prompts, encode)]
    if not _is_list(prompts):
        raise _wrong(prompts, "prompts")
    return [_read(prompt, encode) for prompt in prompts]


def _read(prompt: Any, encode: Callable[[str], Sequence[int]]) -> ReadPrompt:
    if isinstance(prompt, Mapping):
        return _read_mapping(prompt, encode)
    if isinstance(prompt, str):
        return ReadPrompt(text=prompt, token_ids=tuple(encode(prompt)))
    return ReadPrompt(text=None, token_ids=_read_ids(prompt, "prompt"))


def _read_mapping(prompt: Mapping[Any, Any], encode: Callable[[str], Sequence[int]]) -> ReadPrompt:
    for key in prompt:
        if key not in _KEYS:
            known = ", ".join(_KEYS)
            raise InvalidRequestError(
                f"a prompt has no key {key!r} here; it may have: {known}", param=str(key)
            )
    text, salt = prompt.get("prompt"), prompt.get("cache_salt", "")
    for key, value in (("prompt", text), ("cache_salt", salt)):
        if value is not None and not isinstance(value, str):
            raise InvalidRequestError(f"{key} must be a text, not {value!r:.80}", param=key)
    cache_salt = (salt or "").encode()
    if prompt.get(PARAM) is not None:
        token_ids, embeds = read_embeds_prompt(prompt)
        return ReadPrompt(text=text, token_ids=token_ids, cache_salt=cache_salt, embeds=embeds)
    if "prompt_token_ids" in prompt:
        token_ids = _read_ids(prompt["prompt_token_ids"], "prompt_token_ids")
    elif text is not None:
        token_ids = tuple(encode(text))
    else:
        raise InvalidRequestError("a prompt needs prompt or prompt_token_ids", param="prompt")
    return ReadPrompt(text=text, token_ids=token_ids, cache_salt=cache_salt)


def _read_ids(ids: Any, key: str) -> tuple[int, ...]:
    if not _is_list(ids) or not all(map(_is_id, ids)):
        raise _wrong(ids, key)
    return tuple(map(int, ids))


def _is_ids(prompts: Any) -> TypeGuard[Sequence[int]]:
    """Return whether a value is the token ids of one prompt; an empty list is a list of prompts."""
    return _is_list(prompts) and bool(prompts) and _is_id(prompts[0])


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _is_id(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _wrong(value: Any, key: str) -> InvalidRequestError:
    wanted = "token ids" if key == "prompt_token_ids" else "a text, token ids or a mapping"
    return InvalidRequestError(f"{key} must be {wanted}, not {value!r:.80}", param=key)
