"""What requests of every other API may say to the engine beside that API's own fields.

The names and meanings are those of the chat endpoint; pydantic reads the annotations at run time.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from services.router.openai.schema_base import (  # noqa: TC001 read at run time
    NonEmpty,
    NumTokens,
    Penalty,
    TokenId,
)

_INT32_MAX = 2**31 - 1


class SamplingExtras(BaseModel):
    """The engine's fields: given to the chat endpoint as they are."""

    top_k: Annotated[int, Field(ge=-1, le=_INT32_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    min_tokens: NumTokens | None = None
    ignore_eos: bool | None = None
    stop_token_ids: tuple[TokenId, ...] | None = None
    allowed_token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)] | None = None
    bad_words: tuple[NonEmpty, ...] | None = None
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    request_id: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-_INT32_MAX, le=_INT32_MAX)] | None = None
    max_ttft_ms: Annotated[float, Field(gt=0)] | None = None
    max_itl_ms: Annotated[float, Field(gt=0)] | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    def extras(self) -> dict[str, Any]:
        """Those that are given."""
        names = SamplingExtras.model_fields
        return {name: value for name in names if (value := getattr(self, name)) is not None}
