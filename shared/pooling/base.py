"""The interface of a part that computes vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from shared.pooling.facts import PoolingFacts, PoolingKind, PoolTask, ScoreActivation

if TYPE_CHECKING:
    from torch import Tensor

    from shared.request.adapter_ref import AdapterRef

__all__ = [
    "PoolRequest",
    "PoolTask",
    "Pooled",
    "Pooler",
    "PoolingFacts",
    "PoolingKind",
    "ScoreActivation",
]


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
    #: The adapter to compute with; None: the model alone.
    adapter: AdapterRef | None = None
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
            AdapterNotLoadedError: its adapter is not known.
            RequestCancelledError: `abort` ended it.
            UnavailableError: the part does not run, or is being closed.
            InternalError: the step failed.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request: its `pool` raises. Unknown ids are ignored."""
        ...
