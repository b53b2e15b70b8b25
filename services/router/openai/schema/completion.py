"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Any

from services.router.openai.schema.base import GenerationBody
from services.router.openai.schema.field_types import NumLogprobs, NumTokens  # noqa: TC001 read at run time


class CompletionBody(GenerationBody):
    """A request to continue one or several prompts."""

    #: `tools` and `tool_choice` are for chats; here they may only state that there are none.
    ignored = GenerationBody.ignored | {"tools", "tool_choice"}

    #: A string, a list of token ids, or a list of either; reading/prompts.py checks.
    prompt: Any = None
    #: Base64 of a tensor [tokens, hidden size] that torch.save wrote, or a list of such; their
    #: answers come before those to `prompt`. reading/given_prompts.py checks.
    prompt_embeds: Any = None
    #: OpenAI's default. null: the rest of the context, as in vLLM.
    max_tokens: NumTokens | None = 16
    logprobs: NumLogprobs | None = None
