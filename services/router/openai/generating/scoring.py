"""POST /generative_scoring: how likely a token follows a query and each of several items."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import Request, Response  # noqa: TC002 read at run time by the framework
from pydantic import Field

from services.router.openai.generating.endpoint import encode
from services.router.openai.http.arrival import arrived_s
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.http.disconnect import unless_disconnected
from services.router.openai.http.request_id import generation_ids, request_names, response_id
from services.router.openai.reading.prompts import check_vocabulary
from services.router.openai.replies.answers import stream_answers
from services.router.openai.replies.collect import collect
from services.router.openai.replies.responses import (
    Tally,
    UsageBody,
    json_response,
)
from services.router.openai.schema.base import Body
from services.router.openai.schema.field_types import INT32_MAX, TokenId
from services.router.request.generation import GenerationRequest
from shared.errors import RequestCancelledError
from shared.generation.limits import check_answers, check_num_tokens, check_texts
from shared.generation.params import GenerationParams
from shared.request.logprobs_mode import LogprobsMode
from shared.request.sampling_params import MAX_LOGPROB_TOKEN_IDS

if TYPE_CHECKING:
    from services.router.models import AskedModel
    from services.router.openai.backend import Backend
    from services.router.openai.replies.collect import Collected

_PREFIX = "generative-scoring"
Text = str | list[TokenId]


class ScoringBody(Body):
    """A query and the items to score."""

    query: Text
    items: Annotated[list[str] | list[list[TokenId]], Field(min_length=1)]
    #: The score is the probability of the first of them.
    label_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS)]
    #: true, the default: among the labels alone. false: among all tokens.
    apply_softmax: bool | None = None
    #: true: the items come before the query.
    item_first: bool | None = None
    add_special_tokens: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] | None = None
    request_id: str | None = None


class Score(msgspec.Struct):
    """The score of an item."""

    index: int
    score: float
    object: str = "score"


class Scores(msgspec.Struct):
    """The scores of all items."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: UsageBody
    object: str = "list"


class GenerativeScoring:
    """The endpoint POST /generative_scoring."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, request: Request) -> Response:
        """Return the score of every item: one token is computed behind each."""
        arrival_s = arrived_s(request)
        backend = self._backend
        raw = await read_body(request, backend.limits)
        body = await parse_body(request, ScoringBody, raw, backend.unknown_fields)
        asked = backend.models.resolve(body.model)
        self._check(body)
        prompts, tokenize_ms = await encode(raw, lambda: self._prompts(body))
        requests = self._requests(request, body, asked, prompts, arrival_s, tokenize_ms)
        tally = Tally(sum(map(len, prompts)))
        parts = stream_answers(backend.generator, requests)
        found = await unless_disconnected(
            request.receive, collect(parts, num_prompts=len(prompts), n=1, tally=tally)
        )
        data = [Score(i, _score(each, body)) for i, each in enumerate(found)]
        scores = Scores(
            response_id(request, _PREFIX), int(time.time()), asked.name, data, tally.final()
        )
        return json_response(scores)

    def _check(self, body: ScoringBody) -> None:
        limits, models = self._backend.limits, self._backend.models
        check_answers(len(body.items), 1, limits, param="items")
        check_vocabulary(body.label_token_ids, models, param="label_token_ids")
        texts = [text for text in (body.query, *body.items) if isinstance(text, str)]
        check_texts(texts, limits, param="items")

    def _prompts(self, body: ScoringBody) -> list[tuple[int, ...]]:
        """Return query and item, as tokens each; what is too long loses its end, as in vLLM."""
        special = body.add_special_tokens is not False
        query = self._encode(body.query, special=special)
        room = self._backend.models.max_model_len - 1
        items = (self._encode(item, special=False) for item in body.items)
        return [(item + query if body.item_first else query + item)[:room] for item in items]

    def _encode(self, text: Text, *, special: bool) -> tuple[int, ...]:
        if isinstance(text, str):
            return tuple(self._backend.tokenizer.encode(text, special))
        return tuple(text)

    def _requests(
        self,
        request: Request,
        body: ScoringBody,
        asked: AskedModel,
        prompts: list[tuple[int, ...]],
        arrival_s: float,
        tokenize_ms: float,
    ) -> list[GenerationRequest]:
        backend = self._backend
        labels = tuple(dict.fromkeys(body.label_token_ids))
        params = GenerationParams(
            max_tokens=1,
            temperature=0.0,
            logprobs=0,
            logprob_token_ids=labels,
            logprobs_mode=LogprobsMode.RAW_LOGPROBS,
        )
        caller = backend.caller_of(request)
        ids = generation_ids(request, _PREFIX, len(prompts))
        for i, prompt in enumerate(prompts):
            check_num_tokens(len(prompt), backend.limits, param=f"items[{i}]")
            check_vocabulary(prompt, backend.models, param=f"items[{i}]")
        return [
            GenerationRequest(
                request_id=ids[i],
                model=asked.name,
                adapter=asked.adapter,
                names=request_names(request, _PREFIX),
                prompt_token_ids=prompt,
                params=params,
                priority=body.priority or 0,
                tenant=caller.tenant,
                cache_salt=caller.cache_salt(body.cache_salt),
                arrival_s=arrival_s,
                tokenize_ms=tokenize_ms,
            )
            for i, prompt in enumerate(prompts)
        ]


def _score(found: Collected, body: ScoringBody) -> float:
    """Return the probability of the first label.

    Raises:
        RequestCancelledError: the request was aborted before there was a token.
    """
    answer = found.answers[0]
    if not answer.details:
        raise RequestCancelledError("the request was aborted: an item has no score")
    logprobs = [token.logprob for token in answer.details[0].top]
    if body.apply_softmax is False:
        return math.exp(logprobs[0])
    largest = max(logprobs)
    weights = [math.exp(logprob - largest) for logprob in logprobs]
    return weights[0] / sum(weights)
