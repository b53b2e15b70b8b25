"""POST /v1/route: explain the route of a request.

Takes a body of either generating endpoint, or of /v1/embeddings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.openai.errors import FieldError
from services.router.openai.generating.chat import ChatCompletions
from services.router.openai.generating.completions import Completions
from services.router.openai.http.arrival import arrived_s
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.http.kind import is_chat, is_embedding
from services.router.openai.replies.responses import json_response
from services.router.openai.schema.chat import ChatBody
from services.router.openai.schema.completion import CompletionBody
from services.router.openai.vectors.endpoints import VectorEndpoints

if TYPE_CHECKING:
    from services.router.openai.backend import Backend
    from services.router.request.generation import GenerationRequest


class RouteEndpoint:
    """Explains routing decisions. Nothing is sent to a worker and nothing is booked."""

    def __init__(self, backend: Backend) -> None:
        """Explain with the backend's explainer, which must be there."""
        if backend.explainer is None:
            raise TypeError("the backend has no explainer")
        self._backend = backend
        self._explainer = backend.explainer
        self._chat = ChatCompletions(backend)
        self._completions = Completions(backend)

    async def explain(self, request: Request) -> Response:
        """Return each worker's cost by term, the cached tokens, and the present route."""
        raw = await read_body(request, self._backend.limits)
        explainer = self._backend.vector_explainer
        if explainer is not None and is_embedding(raw):
            asked = await VectorEndpoints(self._backend).prepare(request, raw, arrived_s(request))
            return json_response(explainer.explain(asked))
        return json_response(self._explainer.explain(await self._read(request, raw)))

    async def _read(self, request: Request, raw: bytes) -> GenerationRequest:
        arrival_s = arrived_s(request)
        if is_chat(raw):
            body = await parse_body(request, ChatBody, raw, self._backend.unknown_fields)
            return (await self._chat.prepare(request, body, raw, arrival_s)).generation
        completion = await parse_body(request, CompletionBody, raw, self._backend.unknown_fields)
        _, generations = await self._completions.read(request, completion, raw, arrival_s)
        if len(generations) != 1:
            message = f"prompt must be a single prompt here, not {len(generations)}"
            raise FieldError(message, param="prompt")
        return generations[0]
