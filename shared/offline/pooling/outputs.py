"""Vectors, classes and scores in vLLM's records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@dataclass
class PoolingOutput:
    """The numbers of one text."""

    #: float32 [size], or [num_tokens, size].
    data: torch.Tensor


@dataclass
class EmbeddingOutput:
    """The embedding of one text."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Return how many numbers there are."""
        return len(self.embedding)


@dataclass
class ClassificationOutput:
    """The classes of one text."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """Return how many classes there are."""
        return len(self.probs)


@dataclass
class ScoringOutput:
    """The score of one pair."""

    score: float


@dataclass
class PoolingRequestOutput(Generic[T]):
    """A text and what was made of it."""

    request_id: str
    outputs: T
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """A text and its embedding."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """A text and its classes."""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """A pair and its score."""
