"""The calls of the Router service that make vectors of texts, and scores of them."""

from __future__ import annotations

import secrets
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from structlog.contextvars import bind_contextvars

from baton.v1 import common_pb2, router_pb2
from services.router.answer.wire import usage_to_wire
from services.router.request.request_name import RULE, is_request_name
from services.router.vectors.service import Wish, ranked, usage_of
from shared.errors import InvalidRequestError
from shared.pooling.facts import PoolTask
from shared.pooling.texts.truncation import read_text_truncation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    import grpc

    from services.router.admission.caller import Caller
    from services.router.vectors.service import Vectors

    Context = grpc.aio.ServicerContext[Any, Any]
    Request = (
        router_pb2.EmbedRequest
        | router_pb2.RerankRequest
        | router_pb2.ScoreRequest
        | router_pb2.ClassifyRequest
    )


class VectorCalls:
    """Answers the calls. Ending a call ends its work on every worker."""

    def __init__(self, vectors: Vectors, caller: Caller) -> None:
        """Answer the calls of one caller."""
        self._vectors = vectors
        self._caller = caller

    async def embed(
        self, request: router_pb2.EmbedRequest, context: Context
    ) -> AsyncGenerator[router_pb2.EmbedResponse, None]:
        """Yield the vectors as they become known; the last message has the usage."""
        task = PoolTask.TOKEN_EMBED if request.each_token else PoolTask.EMBED
        name, wish = self._wish(
            request,
            context,
            request.options,
            task=task,
            dimensions=request.dimensions if request.HasField("dimensions") else None,
            prompt_name=request.prompt_name if request.HasField("prompt_name") else None,
        )
        asked = await self._vectors.read(_texts(request.inputs), wish, param="inputs")
        found = []
        async with aclosing(self._vectors.stream(asked)) as stream:
            async for vector in stream:
                found.append(vector)
                is_last = len(found) == len(asked.inputs)
                yield router_pb2.EmbedResponse(
                    request_id=name,
                    index=vector.index,
                    vector=common_pb2.Vector(data=vector.data, num_rows=vector.num_rows),
                    usage=usage_to_wire(usage_of(found)) if is_last else None,
                )

    async def rerank(
        self, request: router_pb2.RerankRequest, context: Context
    ) -> router_pb2.RerankResponse:
        """Return the documents, best first."""
        name, wish = self._wish(
            request,
            context,
            request.options,
            instruction=request.instruction if request.HasField("instruction") else None,
        )
        scores, usage = await self._vectors.scores([request.query], list(request.documents), wish)
        top_n = request.top_n if request.HasField("top_n") else 0
        results = [
            router_pb2.RankedDocument(index=place, relevance_score=scores[place])
            for place in ranked(scores, top_n or None)
        ]
        return router_pb2.RerankResponse(
            request_id=name, results=results, usage=usage_to_wire(usage)
        )

    async def score(
        self, request: router_pb2.ScoreRequest, context: Context
    ) -> router_pb2.ScoreResponse:
        """Return a score for each document."""
        name, wish = self._wish(
            request,
            context,
            request.options,
            instruction=request.instruction if request.HasField("instruction") else None,
        )
        scores, usage = await self._vectors.scores(
            list(request.queries), list(request.documents), wish, params=("queries", "documents")
        )
        return router_pb2.ScoreResponse(request_id=name, scores=scores, usage=usage_to_wire(usage))

    async def classify(
        self, request: router_pb2.ClassifyRequest, context: Context
    ) -> router_pb2.ClassifyResponse:
        """Return the classes of each text."""
        name, wish = self._wish(request, context, request.options, task=PoolTask.CLASSIFY)
        labels = self._vectors.facts(wish.model, PoolTask.CLASSIFY).labels
        asked = await self._vectors.read(_texts(request.inputs), wish, param="inputs")
        found = await self._vectors.found(asked)
        results = []
        for row in found.rows():
            best = int(row.argmax())
            label = labels[best] if best < len(labels) else ""
            results.append(router_pb2.Classification(label=label, probs=row.tolist()))
        return router_pb2.ClassifyResponse(
            request_id=name, results=results, usage=usage_to_wire(found.usage)
        )

    def _wish(
        self, request: Request, context: Context, options: router_pb2.PoolOptions, **more: Any
    ) -> tuple[str, Wish]:
        """Return the request's name for its client, and what it says besides its texts."""
        if request.request_id and not is_request_name(request.request_id):
            raise InvalidRequestError(f"request_id must have {RULE}", param="request_id")
        name = request.request_id or f"grpc-{secrets.token_hex(16)}"
        bind_contextvars(request_id=name)
        caller = self._caller
        has = options.HasField
        # Two requests with one id on one worker could not be told apart.
        suffix = f"-{secrets.token_hex(4)}" if request.request_id else ""
        wish = Wish(
            request_id=name + suffix,
            names=(name,),
            model=request.model,
            use_activation=options.use_activation if has("use_activation") else None,
            truncation=read_text_truncation(
                options.truncate_prompt_tokens if has("truncate_prompt_tokens") else None,
                options.truncation_side if has("truncation_side") else None,
            ),
            priority=options.priority,
            tenant=caller.tenant,
            cache_salt=caller.cache_salt(None),
            arrival_s=time.monotonic(),
            **more,
        )
        return name, wish


def _texts(prompts: Iterable[router_pb2.Prompt]) -> Sequence[str | list[int]]:
    """Return the texts or tokens of the prompts.

    Raises:
        InvalidRequestError: one is neither.
    """
    texts: list[str | list[int]] = []
    for i, prompt in enumerate(prompts):
        match prompt.WhichOneof("content"):
            case "text":
                texts.append(prompt.text)
            case "tokens":
                texts.append(list(prompt.tokens.ids))
            case _:
                param = f"inputs[{i}]"
                raise InvalidRequestError(f"{param} must hold text or tokens", param=param)
    return texts
