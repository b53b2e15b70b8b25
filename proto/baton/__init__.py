"""Baton's engine in a program of your own, with vLLM's names: `from baton import LLM`.

`baton.v1` is the wire contract. What a name needs is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.offline.async_llm import AsyncLLM as AsyncLLM
    from shared.offline.engine_args import AsyncEngineArgs as AsyncEngineArgs
    from shared.offline.engine_args import EngineArgs as EngineArgs
    from shared.offline.llm import LLM as LLM
    from shared.offline.llm_engine import LLMEngine as LLMEngine
    from shared.offline.pooling.outputs import (
        ClassificationRequestOutput as ClassificationRequestOutput,
    )
    from shared.offline.pooling.outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
    from shared.offline.pooling.outputs import PoolingRequestOutput as PoolingRequestOutput
    from shared.offline.pooling.outputs import ScoringRequestOutput as ScoringRequestOutput
    from shared.offline.pooling.params import PoolingParams as PoolingParams
    from shared.offline.records.outputs import CompletionOutput as CompletionOutput
    from shared.offline.records.outputs import RequestOutput as RequestOutput
    from shared.offline.records.prompts import EmbedsPrompt as EmbedsPrompt
    from shared.offline.records.prompts import PromptType as PromptType
    from shared.offline.records.prompts import TextPrompt as TextPrompt
    from shared.offline.records.prompts import TokensPrompt as TokensPrompt
    from shared.offline.records.sampling_params import BeamSearchParams as BeamSearchParams
    from shared.offline.records.sampling_params import RequestOutputKind as RequestOutputKind
    from shared.offline.records.sampling_params import SamplingParams as SamplingParams
    from shared.offline.records.sampling_params import (
        StructuredOutputsParams as StructuredOutputsParams,
    )

    AsyncLLMEngine = AsyncLLM

_PLACES = {
    "AsyncEngineArgs": "engine_args",
    "AsyncLLM": "async_llm",
    "BeamSearchParams": "records.sampling_params",
    "ClassificationRequestOutput": "pooling.outputs",
    "CompletionOutput": "records.outputs",
    "EmbeddingRequestOutput": "pooling.outputs",
    "EmbedsPrompt": "records.prompts",
    "EngineArgs": "engine_args",
    "LLM": "llm",
    "LLMEngine": "llm_engine",
    "PoolingParams": "pooling.params",
    "PoolingRequestOutput": "pooling.outputs",
    "PromptType": "records.prompts",
    "RequestOutput": "records.outputs",
    "RequestOutputKind": "records.sampling_params",
    "SamplingParams": "records.sampling_params",
    "ScoringRequestOutput": "pooling.outputs",
    "StructuredOutputsParams": "records.sampling_params",
    "TextPrompt": "records.prompts",
    "TokensPrompt": "records.prompts",
}
_ALIASES = {"AsyncLLMEngine": "AsyncLLM"}

__all__ = sorted([*_PLACES, *_ALIASES])


def __getattr__(name: str) -> Any:
    own = _ALIASES.get(name, name)
    if own not in _PLACES and own != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The contract also serves programs that have nothing but `proto` on their path.
    from shared import offline, version  # noqa: PLC0415

    if own == "__version__":
        return version.VERSION
    try:
        module = importlib.import_module(f".{_PLACES[own]}", offline.__name__)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{own} needs {error.name}: pip install 'baton[worker]', or `make setup` in a checkout",
            name=error.name,
        ) from error
    return getattr(module, own)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
