"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Any

from services.router.openai.schema.base import GenerationBody
from services.router.openai.schema.field_types import NumLogprobs, NumTokens  # noqa: TC001 read at run time

#: OpenAI's. Null is the default as well, as in vLLM.
DEFAULT_MAX_TOKENS = 16


class CompletionBody(GenerationBody):
    """A request to continue one or several prompts."""

    #: `tools` and `tool_choice` are for chats; here they may only state that there are none.
    ignored = GenerationBody.ignored | {"tools", "tool_choice"}

    #: A string, a list of token ids, or a list of either; reading/prompts.py checks.
    prompt: Any = None
    #: Base64 of a tensor [tokens, hidden size] that torch.save wrote, or a list of such; their
    #: answers come before those to `prompt`. reading/given_prompts.py checks.
    prompt_embeds: Any = None
    #: Default: DEFAULT_MAX_TOKENS.
    max_tokens: NumTokens | None = None
    logprobs: NumLogprobs | None = None
