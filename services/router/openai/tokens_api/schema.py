"""The body of POST /inference/v1/generate.

Pydantic reads these annotations at run time.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from services.router.openai.schema.base import Body, GenerationBody, StreamOptions
from services.router.openai.schema.field_types import (
    INT32_MAX,
    NumLogprobs,
    NumTokens,
    TokenId,
)

_TEXT_ONLY = "this server takes and generates text alone"
#: Known fields of vLLM that would change the answer, and why they are refused.
REFUSED: dict[str, str] = {
    "features": _TEXT_ONLY,
    "content_parts": _TEXT_ONLY,
    "kv_transfer_params": "the router arranges the hand-off between workers itself",
    "ec_transfer_params": "there is no encoder whose results could be handed over",
}
#: Fields that change nothing, and why.
IGNORED: dict[str, str] = {
    "token_offsets": "offsets of /render are for the client",
    "reasoning_parser_kwargs": "the prompt's tokens say whether it has begun the reasoning",
}
#: Fields of vLLM's SamplingParams that would change the answer, and why they are refused.
REFUSED_SAMPLING: dict[str, str] = {
    "prompt_logprob_token_ids": "prompt_logprobs has the most likely tokens of every position",
    "prompt_logprob_start": "prompt_logprobs has every position",
    "trace_decode_token_ids": "the workers' own logits processors can force tokens",
}
#: Fields of vLLM's SamplingParams that change nothing here.
_SILENT = {
    "detokenize",
    "output_kind",
    "skip_clone",
    "output_text_buffer_length",
    "flat_logprobs",
    "skip_reading_prefix_cache",
    "routed_experts_prompt_start",
}


class TokenSampling(GenerationBody):
    """Sampling parameters with the names of vLLM's `SamplingParams`."""

    ignored = GenerationBody.ignored | _SILENT | REFUSED_SAMPLING.keys()

    #: null: the rest of the context.
    max_tokens: Annotated[NumTokens, Field(ge=1)] | None = None
    logprobs: NumLogprobs | None = None


class GenerateBody(Body):
    """A prompt of tokens to continue."""

    ignored = frozenset({*REFUSED, *IGNORED})

    token_ids: Annotated[list[TokenId], Field(min_length=1)]
    sampling_params: TokenSampling
    request_id: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    #: text: the answer's text as well, and log probabilities with the tokens' texts.
    output_mode: Literal["tokens", "text"] | None = None
    #: Return the prompt's tokens as well; in the first chunk of a stream.
    return_token_ids: bool | None = None
    #: false: an answer with a format may reason before it.
    reasoning_ended: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] | None = None

    def one_body(self) -> TokenSampling:
        """Return the sampling parameters with the body's own fields, for checks across both."""
        shared: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("stream", "stream_options", "cache_salt", "priority")
        }
        return self.sampling_params.model_copy(update=shared)
