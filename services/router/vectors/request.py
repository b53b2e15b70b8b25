"""The interface between the front ends and the pipeline of vectors."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from services.router.admission.tenant import ANONYMOUS, Tenant
from shared.pooling.facts import PoolTask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from numpy.typing import NDArray

    from services.router.routing.explain import Explanation
    from shared.pooling.texts.text_input import VectorInput
    from shared.request.adapter_ref import AdapterRef


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRequest:
    """Texts whose vectors are wanted; checked: each can be served by the model."""

    request_id: str
    #: The name for the reply: the model's own, or the adapter's.
    model: str
    #: The names by which its client may abort it.
    names: tuple[str, ...] = ()
    inputs: tuple[VectorInput, ...] = field(repr=False)
    task: PoolTask = PoolTask.EMBED
    #: See `shared.pooling.base.PoolRequest`.
    normalize: bool | None = None
    dimensions: int | None = None
    activate: bool | None = None
    #: Whether workers can use KV of earlier texts again.
    is_causal: bool = True
    #: The adapter that was asked for; None: the model itself.
    adapter: AdapterRef | None = None
    priority: int = 0
    tenant: Tenant = ANONYMOUS
    #: Derived from the tenant, never from the client's fields alone.
    cache_salt: bytes = b""
    #: time.monotonic() at the request's arrival at the router.
    arrival_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(len(each.token_ids) for each in self.inputs)


@dataclass(frozen=True, slots=True)
class FoundVector:
    """The vector of one text."""

    #: Of the text in the request.
    index: int
    #: float32, little-endian, [rows, width].
    data: bytes = field(repr=False)
    num_rows: int
    num_tokens: int
    #: Of these tokens, those whose KV was in the worker's cache.
    num_cached_tokens: int

    @property
    def numbers(self) -> NDArray[np.float32]:
        """The numbers [rows, width]."""
        numbers = np.frombuffer(self.data, "<f4").reshape(self.num_rows, -1)
        return numbers if sys.byteorder == "little" else numbers.astype(np.float32)


class Vectorizer(Protocol):
    """Makes vectors. services/router/vectors/pipeline.py is the implementation."""

    def vectors(self, request: VectorRequest) -> AsyncIterator[FoundVector]:
        """Yield the vector of each text, in the order in which they become known.

        Closing the iterator cancels the rest on every worker.

        Raises:
            InvalidRequestError: a worker cannot serve one of the texts.
            OverloadedError: refused before all work was done.
            UnavailableError: no worker could serve one of the texts.
            DeadlineError: the request's time ran out.
            RequestCancelledError: it was aborted by its name.
        """
        ...


class VectorExplainer(Protocol):
    """Explains routes. services/router/vectors/pipeline.py is the implementation."""

    def explain(self, request: VectorRequest) -> Explanation:
        """Return the decision about the first text, with its inputs. Sends and books nothing."""
        ...
