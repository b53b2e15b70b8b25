"""The sampling fields of requests, declared once for every API.

Pydantic reads the annotations at run time.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from services.router.openai.schema.field_types import (
    INT32_MAX,
    ExtraArgs,
    NonEmpty,
    NumTokens,
    Penalty,
    Seed,
    TokenId,
)


class SamplingFields(BaseModel):
    """Fields that every API has, with the names and meanings of vLLM's chat endpoint."""

    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Seed | None = None
    min_tokens: NumTokens | None = None
    ignore_eos: bool | None = None
    stop_token_ids: tuple[TokenId, ...] | None = None
    allowed_token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)] | None = None
    bad_words: tuple[NonEmpty, ...] | None = None
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    #: End an answer that repeats itself: max_pattern_size, min_pattern_size, min_count.
    repetition_detection: dict[str, Annotated[int, Field(ge=0)]] | None = None
    #: Most tokens of reasoning before the answer; -1: any number.
    thinking_token_budget: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    #: False, with special tokens in the text: none of the decoder's spaces between two of them.
    spaces_between_special_tokens: bool | None = None
    #: The request's id, unless the header x-request-id has one, as in vLLM.
    request_id: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] | None = None
    #: Refuse the request (429) if its expected latency exceeds this; see docs/routing.md.
    max_ttft_ms: Annotated[float, Field(gt=0)] | None = None
    max_itl_ms: Annotated[float, Field(gt=0)] | None = None
    #: Format of the answer; services/router/openai/reading/structured.py checks these fields.
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None


class SamplingExtras(SamplingFields):
    """Fields that APIs other than chat and completions pass on to the chat endpoint."""

    chat_template_kwargs: dict[str, Any] | None = None
    #: Arguments of the workers' logits processors.
    vllm_xargs: ExtraArgs = None

    def extras(self) -> dict[str, Any]:
        """Return the fields that are given."""
        names = SamplingExtras.model_fields
        return {name: value for name in names if (value := getattr(self, name)) is not None}
