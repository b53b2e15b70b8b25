"""Common fields of chat and completion requests: OpenAI's sampling fields and vLLM's extras.

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
    model_serializer,
)

from services.router.openai.schema.field_types import (
    INT32_MAX,
    ExtraArgs,
    NumLogprobs,
    Temperature,
    TokenId,
)
from services.router.openai.schema.sampling import SamplingFields
from services.router.openai.schema.unsupported import IGNORED, REFUSED
from shared.generation.truncation import Side  # noqa: TC001 read at run time
from shared.request.sampling_params import MAX_LOGPROB_TOKEN_IDS


class RequestObject(BaseModel):
    """An object of a request: the body, or a part of it.

    Numbers are numbers, not strings; null means the same as absent. Other fields are kept, so that
    unknown_fields.py can name them, but they are never written.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    #: Known fields that are not the class's own and change nothing; they are documented.
    ignored: ClassVar[Collection[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _own_fields(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unknown = self.model_extra or {}
        return {name: value for name, value in write(self).items() if name not in unknown}


class Body(RequestObject):
    """The body of a request."""

    model: str | None = None


class StreamOptions(RequestObject):
    """Data that a stream has besides the text."""

    #: There is no obfuscation.
    ignored = frozenset({"include_obfuscation"})

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(Body, SamplingFields):
    """Fields of both generating endpoints. Their meaning is OpenAI's, otherwise vLLM's."""

    ignored = frozenset({*IGNORED, *REFUSED, "modalities"})

    n: Annotated[int, Field(ge=1)] | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    #: A string or a list of them; services/router/openai/reading/params.py checks it.
    stop: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    prompt_logprobs: NumLogprobs | None = None
    #: The alternatives of the answer's tokens, instead of the most likely ones.
    logprob_token_ids: (
        Annotated[tuple[TokenId, ...], Field(max_length=MAX_LOGPROB_TOKEN_IDS)] | None
    ) = None
    #: Maximum of draft tokens per step, on workers that speculate; 0: none.
    num_speculative_tokens: Annotated[int, Field(ge=0, le=128)] | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    #: Keep this number of the prompt's tokens; -1: as many as leave room for an answer.
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    #: The side that is cut off.
    truncation_side: Side | None = None
    #: Generate this number of answers and return the `n` most likely ones; not with `stream`.
    #: With beam search: the number of beams.
    best_of: Annotated[int, Field(ge=1)] | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    early_stopping: Literal[True, False, "never"] | None = None
    #: Arguments of the workers' logits processors; the two names mean the same.
    vllm_xargs: ExtraArgs = None
    extra_args: ExtraArgs = None
    #: Format of the answer; services/router/openai/reading/structured.py checks these fields.
    response_format: Any = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    #: Only if the cluster is started with --enable-return-hidden-states.
    return_hidden_states: bool | None = None
    #: Tokens per chunk of a stream, but for its first and its last; the router's own setting is the
    #: least.
    stream_interval: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
