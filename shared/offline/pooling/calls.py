"""The methods of vLLM's `LLM` that make vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shared.errors import InvalidRequestError
from shared.offline.pooling.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from shared.offline.pooling.params import PoolingParams, read_task
from shared.pooling.facts import PoolTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.offline.pooling.vectors import OfflineVectors
    from shared.pooling.base import Pooled, PoolRequest

    Given = PoolingParams | Sequence[PoolingParams] | None


class HasVectors(Protocol):
    """What has these methods."""

    @property
    def vectors(self) -> OfflineVectors:
        """What makes vectors of texts."""
        ...


class VectorCalls:
    """Gives a class these methods. Bars of progress are not shown: a call is one batch."""

    def embed(
        self: HasVectors,
        prompts: Any,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
        pooling_params: Given = None,
        lora_request: object = None,
        tokenization_kwargs: object = None,
    ) -> list[EmbeddingRequestOutput]:
        """Return the embedding of each prompt.

        Raises:
            InvalidRequestError: a prompt or a parameter cannot be served; nothing is computed.
        """
        found = _made(
            self, prompts, pooling_params, PoolTask.EMBED, truncate_prompt_tokens, lora_request
        )
        return [
            EmbeddingRequestOutput(
                request.request_id,
                EmbeddingOutput(pooled.data.tolist()),
                list(request.token_ids),
                pooled.num_cached_tokens,
            )
            for request, pooled in found
        ]

    def encode(
        self: HasVectors,
        prompts: Any,
        pooling_params: Given = None,
        *,
        pooling_task: str = "token_embed",
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
        lora_request: object = None,
        tokenization_kwargs: object = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return numbers of each prompt, as tensors; by default a vector for each token.

        Raises:
            InvalidRequestError: a prompt or a parameter cannot be served; nothing is computed.
        """
        task = read_task(pooling_task)
        found = _made(self, prompts, pooling_params, task, truncate_prompt_tokens, lora_request)
        return [
            PoolingRequestOutput(
                request.request_id,
                PoolingOutput(pooled.data),
                list(request.token_ids),
                pooled.num_cached_tokens,
            )
            for request, pooled in found
        ]

    def classify(
        self: HasVectors,
        prompts: Any,
        *,
        pooling_params: Given = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
        lora_request: object = None,
        tokenization_kwargs: object = None,
    ) -> list[ClassificationRequestOutput]:
        """Return the classes of each prompt.

        Raises:
            InvalidRequestError: a prompt or a parameter cannot be served; nothing is computed.
        """
        found = _made(
            self, prompts, pooling_params, PoolTask.CLASSIFY, truncate_prompt_tokens, lora_request
        )
        return [
            ClassificationRequestOutput(
                request.request_id,
                ClassificationOutput(pooled.data.tolist()),
                list(request.token_ids),
                pooled.num_cached_tokens,
            )
            for request, pooled in found
        ]

    def score(
        self: HasVectors,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        lora_request: object = None,
    ) -> list[ScoringRequestOutput]:
        """Return a score for each pair: of one text with each of several, or of two lists.

        Raises:
            InvalidRequestError: a text or a parameter cannot be served; nothing is computed.
        """
        params = pooling_params or PoolingParams()
        if truncate_prompt_tokens is not None:
            params = PoolingParams(
                **{**vars(params), "truncate_prompt_tokens": truncate_prompt_tokens}
            )
        ones = [data_1] if isinstance(data_1, str) else list(data_1)
        others = [data_2] if isinstance(data_2, str) else list(data_2)
        return [
            ScoringRequestOutput(
                request.request_id, ScoringOutput(score), list(request.token_ids), num_cached
            )
            for request, score, num_cached in self.vectors.scores(
                ones, others, params, lora_request=lora_request
            )
        ]


def _made(
    llm: HasVectors,
    prompts: Any,
    params: Given,
    task: PoolTask,
    truncate_prompt_tokens: int | None,
    lora_request: object,
) -> list[tuple[PoolRequest, Pooled]]:
    given = _prompts(prompts)
    if params is None:
        params = PoolingParams(truncate_prompt_tokens=truncate_prompt_tokens)
    each = [params] * len(given) if isinstance(params, PoolingParams) else list(params)
    if len(each) != len(given):
        message = f"there are {len(given)} prompts and {len(each)} sets of parameters"
        raise InvalidRequestError(message, param="pooling_params")
    adapters = list(lora_request) if isinstance(lora_request, list | tuple) else None
    if adapters is not None and len(adapters) != len(given):
        message = f"there are {len(given)} prompts and {len(adapters)} adapters"
        raise InvalidRequestError(message, param="lora_request")
    return llm.vectors.texts(given, each, task, adapters or [lora_request] * len(given))


def _prompts(prompts: Any) -> list[Any]:
    """Return the prompts of a call: one, or several."""
    is_one = isinstance(prompts, str) or hasattr(prompts, "keys")
    is_ids = not is_one and bool(prompts) and isinstance(prompts[0], int)
    return [prompts] if is_one or is_ids else list(prompts)
