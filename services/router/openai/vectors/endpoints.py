"""POST /v1/embeddings, /v1/classify and /pooling: a vector for each text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.openai.http.body import parse_body, read_body
from services.router.openai.http.disconnect import unless_disconnected
from services.router.openai.http.request_id import response_id
from services.router.openai.replies.long_reply import filled, long_reply
from services.router.openai.vectors.reading import read_input, texts_of, wish_of
from services.router.openai.vectors.schema import (
    ClassifyBody,
    ClassifyChatBody,
    EmbeddingBody,
    EmbeddingChatBody,
    PoolingBody,
    PoolingChatBody,
)
from services.router.openai.vectors.shapes import (
    VectorList,
    class_item,
    embedding_item,
    pooling_item,
    usage_body,
)
from shared.aside import aside
from shared.generation.limits import FLOAT_BYTES
from shared.pooling.facts import PoolTask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.router.openai.backend import Backend
    from services.router.vectors.request import VectorRequest
    from services.router.vectors.service import Found, Wish

_EMBEDDING, _CLASSES, _POOLING = "embd", "classify", "pool"
_TASKS = {
    "embed": PoolTask.EMBED,
    "embedding": PoolTask.EMBED,
    "encode": PoolTask.TOKEN_EMBED,
    "token_embed": PoolTask.TOKEN_EMBED,
    "classify": PoolTask.CLASSIFY,
    "score": PoolTask.SCORE,
}
#: What is made where a request for any kind names none: the first that the model offers.
_USUAL = (PoolTask.CLASSIFY, PoolTask.SCORE, PoolTask.EMBED, PoolTask.TOKEN_EMBED)


class VectorEndpoints:
    """The endpoints that make a vector of each text."""

    def __init__(self, backend: Backend) -> None:
        """Use the backend's vectors, which must be there."""
        self._backend = backend
        self._vectors = backend.require_vectors()

    async def embeddings(self, request: Request) -> Response:
        """Return the embedding of each text, or of a conversation."""
        arrival_s = time.monotonic()
        body = await read_input(request, self._backend, EmbeddingBody, EmbeddingChatBody)
        wish = wish_of(request, body, self._backend, arrival_s, prefix=_EMBEDDING)
        asked, found = await self._found(request, body, wish)
        items = (embedding_item(vector, body) for vector in found.vectors)
        return await self._reply(request, _EMBEDDING, asked.model, found, items)

    async def classify(self, request: Request) -> Response:
        """Return the classes of each text, or of a conversation."""
        arrival_s = time.monotonic()
        body = await read_input(request, self._backend, ClassifyBody, ClassifyChatBody)
        wish = wish_of(
            request, body, self._backend, arrival_s, prefix=_CLASSES, task=PoolTask.CLASSIFY
        )
        facts = self._vectors.facts(body.model, PoolTask.CLASSIFY)
        asked, found = await self._found(request, body, wish)
        items = (class_item(vector, facts.labels) for vector in found.vectors)
        return await self._reply(request, _CLASSES, asked.model, found, items)

    async def pooling(self, request: Request) -> Response:
        """Return the vectors of each text, of the kind that the body names."""
        arrival_s = time.monotonic()
        body = await read_input(request, self._backend, PoolingBody, PoolingChatBody)
        task = self._task(body)
        wish = wish_of(request, body, self._backend, arrival_s, prefix=_POOLING, task=task)
        asked, found = await self._found(request, body, wish)
        each_token = task is PoolTask.TOKEN_EMBED
        items = (pooling_item(vector, body, each_token=each_token) for vector in found.vectors)
        return await self._reply(request, _POOLING, asked.model, found, items)

    async def prepare(self, request: Request, raw: bytes, arrival_s: float) -> VectorRequest:
        """Return the request of a body for embeddings. `raw` is the HTTP body as it came."""
        body = await parse_body(request, EmbeddingBody, raw, self._backend.unknown_fields)
        wish = wish_of(request, body, self._backend, arrival_s, prefix=_EMBEDDING)
        texts, param = await aside(len(raw), lambda: texts_of(body, self._backend))
        return await self._vectors.read(texts, wish, param=param)

    def _task(self, body: PoolingBody | PoolingChatBody) -> PoolTask:
        if body.task is not None:
            return _TASKS[body.task]
        offered = self._vectors.facts(body.model, *_USUAL).tasks
        return next(task for task in _USUAL if task in offered)

    async def _found(self, request: Request, body: Any, wish: Wish) -> tuple[VectorRequest, Found]:
        # The refusal of a model that makes none comes before those of fields.
        self._vectors.facts(wish.model, wish.task)
        size = len(await read_body(request, self._backend.limits))
        texts, param = await aside(size, lambda: texts_of(body, self._backend))
        asked = await self._vectors.read(texts, wish, param=param)
        return asked, await unless_disconnected(request.receive, self._vectors.found(asked))

    async def _reply(
        self,
        request: Request,
        prefix: str,
        model: str,
        found: Found,
        items: Iterable[Iterable[bytes]],
    ) -> Response:
        name = response_id(request, prefix)
        head = VectorList(name, int(time.time()), model, [], usage_body(found.usage))
        size = sum(len(vector.data) for vector in found.vectors) // FLOAT_BYTES
        return await long_reply(filled(head, items), size=size)
