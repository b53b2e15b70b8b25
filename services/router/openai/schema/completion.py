"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Any

from services.router.openai.schema.base import GenerationBody
from services.router.openai.schema.field_types import NumLogprobs, NumTokens  # noqa: TC001 read at run time


class CompletionBody(GenerationBody):
    """A request to continue one or several prompts."""

    #: Chats have the other two; here they may say that there are none.
    ignored = GenerationBody.ignored | {"tools", "tool_choice"}

    #: A string, a list of token ids, or a list of either; reading/prompts.py checks.
    prompt: Any
    #: OpenAI's default. null: as far as the context reaches, as vLLM does.
    max_tokens: NumTokens | None = 16
    logprobs: NumLogprobs | None = None
