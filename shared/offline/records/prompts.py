"""Prompts as mappings, under vLLM's names."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


class EmbedsPrompt(TypedDict):
    """A prompt as embeddings: a tensor [tokens, hidden size] of PyTorch."""

    prompt_embeds: Any
    prompt: NotRequired[str]
    #: With the mask: where it is True, the token is read and not the row.
    prompt_token_ids: NotRequired[list[int]]
    prompt_is_token_ids: NotRequired[list[bool]]
    cache_salt: NotRequired[str]


PromptType = str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt
