"""POST /v1/score and /v1/rerank: how well texts answer others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.openai.errors import FieldError
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.http.disconnect import unless_disconnected
from services.router.openai.http.request_id import response_id
from services.router.openai.replies.responses import json_response
from services.router.openai.vectors.reading import strings_of, wish_of
from services.router.openai.vectors.schema import RerankBody, ScoreBody
from services.router.openai.vectors.shapes import (
    DocumentText,
    RankedData,
    Ranking,
    ScoreData,
    VectorList,
    usage_body,
)
from services.router.vectors.service import ranked

if TYPE_CHECKING:
    from services.router.openai.backend import Backend

_SCORE, _RERANK = "score", "rerank"
#: The names of both sides of a pair, and those that may stand beside them, as in vLLM.
_SIDES = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)


class ScoreEndpoints:
    """The endpoints that compare texts."""

    def __init__(self, backend: Backend) -> None:
        """Use the backend's vectors, which must be there."""
        self._backend = backend
        self._vectors = backend.require_vectors()

    async def score(self, request: Request) -> Response:
        """Return the score of each pair: one text with each of several, or two lists."""
        arrival_s = time.monotonic()
        backend = self._backend
        raw = await read_body(request, backend.limits)
        body = await parse_body(request, ScoreBody, raw, backend.unknown_fields)
        wish = wish_of(request, body, backend, arrival_s, prefix=_SCORE)
        (first, second), names = _sides(body)
        work = self._vectors.scores(first, second, wish, params=names)
        scores, usage = await unless_disconnected(request.receive, work)
        reply = VectorList(
            response_id(request, _SCORE),
            int(time.time()),
            backend.models.resolve(body.model).name,
            [ScoreData(i, score) for i, score in enumerate(scores)],
            usage_body(usage),
        )
        return json_response(reply)

    async def rerank(self, request: Request) -> Response:
        """Return the documents in the order of their relevance for the query."""
        arrival_s = time.monotonic()
        backend = self._backend
        raw = await read_body(request, backend.limits)
        body = await parse_body(request, RerankBody, raw, backend.unknown_fields)
        wish = wish_of(request, body, backend, arrival_s, prefix=_RERANK)
        documents = strings_of(body.documents)
        work = self._vectors.scores(strings_of(body.query), documents, wish)
        scores, usage = await unless_disconnected(request.receive, work)
        has_texts = body.return_documents is not False
        results = [
            RankedData(place, scores[place], DocumentText(documents[place]))
            if has_texts
            else RankedData(place, scores[place])
            for place in ranked(scores, body.top_n or None)
        ]
        name, model = response_id(request, _RERANK), backend.models.resolve(body.model).name
        return json_response(Ranking(name, model, usage_body(usage), results))


def _sides(body: ScoreBody) -> tuple[tuple[list[str], list[str]], tuple[str, str]]:
    """Return both sides of the pairs, and the names of their fields.

    vLLM allows one text with many, in this order only.

    Raises:
        FieldError: one side is missing, or there are more than two.
    """
    names = ("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2")
    given = [name for name in names if getattr(body, name) is not None]
    for one, other in _SIDES:
        if given == [one, other]:
            first, second = getattr(body, one), getattr(body, other)
            return (strings_of(first), strings_of(second)), (one, other)
    ways = ", or ".join(f"{one} and {other}" for one, other in _SIDES)
    found = ", ".join(given) or "none of them"
    message = f"give {ways}; there is {found}"
    param = given[0] if given else _SIDES[0][0]
    raise FieldError(message, param=param, code="missing_required_parameter")
