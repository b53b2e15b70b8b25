"""What a checkpoint says about the vectors that its model makes. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class PoolTask(StrEnum):
    """What a vector is for."""

    #: One vector of a text.
    EMBED = "embed"
    #: One vector for each token of a text.
    TOKEN_EMBED = "token_embed"
    #: One number for each label of the checkpoint's classifier.
    CLASSIFY = "classify"
    #: One number: how well the second part of a text answers the first.
    SCORE = "score"


class PoolingKind(StrEnum):
    """Which hidden states become the vector of a text."""

    #: That of the last token.
    LAST = "last"
    #: Their mean.
    MEAN = "mean"
    #: That of the first token.
    CLS = "cls"


class ScoreActivation(StrEnum):
    """What makes scores of a classifier's logits."""

    NONE = "none"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingFacts:
    """What a model offers, as its checkpoint says."""

    kind: PoolingKind
    #: Numbers in a vector of `PoolTask.EMBED`; 0 if the model does not offer it.
    size: int
    #: Most tokens of a text, its special ones included.
    max_len: int
    tasks: frozenset[PoolTask]
    #: Whether embeddings have the length 1 where the request does not say.
    normalizes: bool = True
    #: Whether a request may ask for fewer `dimensions`: the model was trained for that.
    supports_dimensions: bool = False
    #: Those that it was trained for, ascending; empty: any.
    dimensions: tuple[int, ...] = ()
    #: What is put in front of a text, by the name of its use ("query", "document").
    prompts: Mapping[str, str] = field(default_factory=dict)
    #: The one that is used where a request names none; None: nothing is put in front.
    default_prompt: str | None = None
    #: Of the classifier, by index: as many as numbers of `PoolTask.CLASSIFY`.
    labels: tuple[str, ...] = ()
    #: What makes scores of the classifier's logits where the request does not say.
    activation: ScoreActivation = ScoreActivation.NONE
    #: Whether a token sees only those before it: then KV of shared beginnings is used again.
    is_causal: bool = True
    #: How many values `token_type_ids` may have; 0: the model has none.
    num_token_types: int = 0
