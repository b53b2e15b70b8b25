"""What chat and completion requests have in common: OpenAI's sampling fields and vLLM's extras.

Pydantic reads these annotations at run time.
"""

from __future__ import annotations

from collections.abc import Collection  # noqa: TC003 read at run time
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
)

from services.router.limits import MAX_TEMPERATURE
from services.router.openai.unsupported import IGNORED, REFUSED
from shared.request.extra_args import MAX_ARGS

_INT32_MAX = 2**31 - 1
_INT64_MIN = -(2**63)
_UINT64_MAX = 2**64 - 1

TokenId = Annotated[int, Field(ge=0, le=_INT32_MAX)]
Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
#: As many alternatives as the engine keeps.
NumLogprobs = Annotated[int, Field(ge=0, le=20)]
NumTokens = Annotated[int, Field(ge=0, le=_INT32_MAX)]
NonEmpty = Annotated[str, Field(min_length=1)]
_SCALAR = {"type": ["string", "number", "boolean"]}
#: Checked by shared/request/extra_args.py, which says better what is wrong.
ExtraArgs = Annotated[
    Any,
    WithJsonSchema(
        {
            "type": ["object", "null"],
            "maxProperties": MAX_ARGS,
            "additionalProperties": {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]},
        }
    ),
]


class RequestObject(BaseModel):
    """An object of a request: the body, or one within it. Numbers are numbers, not strings; null
    means the same as absent.

    What else is in it is kept, so that unknown_fields.py can name it, and written nowhere.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    #: Fields that are known, are none of the class's own, and change nothing where they are given:
    #: the documents say so.
    ignored: ClassVar[Collection[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _own_fields(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unknown = self.model_extra or {}
        return {name: value for name, value in write(self).items() if name not in unknown}


class Body(RequestObject):
    """A request's body."""

    model: str | None = None


class StreamOptions(RequestObject):
    """What to send besides the text."""

    #: There is no obfuscation.
    ignored = frozenset({"include_obfuscation"})

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(Body):
    """Fields of both generating endpoints. Their meaning is OpenAI's, then vLLM's."""

    ignored = frozenset({*IGNORED, *REFUSED, "modalities"})

    n: Annotated[int, Field(ge=1)] | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Field(ge=_INT64_MIN, le=_UINT64_MAX)] | None = None
    #: A string or a list of them; services/router/openai/params.py checks it.
    stop: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    #: The request's name, unless the header x-request-id has one, as in vLLM.
    request_id: str | None = None

    top_k: Annotated[int, Field(ge=-1, le=_INT32_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    min_tokens: NumTokens | None = None
    ignore_eos: bool | None = None
    stop_token_ids: tuple[TokenId, ...] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)] | None = None
    bad_words: tuple[NonEmpty, ...] | None = None
    prompt_logprobs: NumLogprobs | None = None
    #: Most tokens that are guessed per step, at workers that speculate; 0: none.
    num_speculative_tokens: Annotated[int, Field(ge=0, le=128)] | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-_INT32_MAX, le=_INT32_MAX)] | None = None
    #: Make so many answers and return the `n` with the most likely tokens; not with `stream`.
    #: With beam search: the number of beams.
    best_of: Annotated[int, Field(ge=1)] | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    early_stopping: Literal[True, False, "never"] | None = None
    #: Arguments of logits processors that the workers run; the two names mean the same.
    vllm_xargs: ExtraArgs = None
    extra_args: ExtraArgs = None
    #: Refuse the request (429) unless it is expected to be this fast; see docs/routing.md.
    max_ttft_ms: Annotated[float, Field(gt=0)] | None = None
    max_itl_ms: Annotated[float, Field(gt=0)] | None = None
    #: What the answer must look like; services/router/openai/structured.py checks them.
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
