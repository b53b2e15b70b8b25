"""The interface of a part that computes vectors, and what a checkpoint says about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRequest:
    """One text, with its special tokens."""

    request_id: str
    token_ids: tuple[int, ...] = field(repr=False)
    task: PoolTask = PoolTask.EMBED
    #: Which part of the text each token belongs to; None: all to the first.
    token_type_ids: tuple[int, ...] | None = field(default=None, repr=False)
    #: Whether the vector gets the length 1; None: as the checkpoint says. For embeddings.
    normalize: bool | None = None
    #: Leading numbers of the vector that are wanted; None: all. For embeddings.
    dimensions: int | None = None
    #: Whether logits become scores by the checkpoint's activation; None: they do. For the others.
    activate: bool | None = None
    #: Lower runs first, beside generation as well.
    priority: int = 0
    #: Isolates the prefix cache, as in generation.
    cache_salt: bytes = b""


@dataclass(frozen=True, slots=True)
class Pooled:
    """The result for one text."""

    #: float32 on the host: [size] of an embedding, [num_labels] of a classification, [1] of a
    #: score, [num_tokens, size] of an embedding of tokens. The caller's.
    data: Tensor
    #: Tokens whose KV was in the prefix cache.
    num_cached_tokens: int = 0


class Pooler(Protocol):
    """Computes vectors of many texts at a time. For one event loop; owns nothing of a request
    after its end.
    """

    @property
    def facts(self) -> PoolingFacts:
        """What the model offers. It never changes."""
        ...

    async def pool(self, request: PoolRequest) -> Pooled:
        """Return the vector of a text. Texts that wait together share steps of the model.

        Cancelling this call aborts the request: what it holds is free again.

        Raises:
            InvalidRequestError: it can never be served; `param` names the field.
            RequestCancelledError: `abort` ended it.
            UnavailableError: the part does not run, or is being closed.
            InternalError: the step failed.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request: its `pool` raises. Unknown ids are ignored."""
        ...
