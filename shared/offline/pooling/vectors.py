"""Vectors in a program: of a decoder by the engine's steps, of an encoder by its own thread."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.functional import cosine_similarity

from shared.engine.sequence.events import Failed, PromptStates
from shared.errors import InternalError, InvalidRequestError, UnavailableError, UnsupportedError
from shared.pooling.base import Pooled, PoolRequest, PoolTask
from shared.pooling.engine_pooler import engine_request, pooled_rows
from shared.pooling.texts.pairs import PairReader
from shared.pooling.texts.reader import TextReader, check_dimensions, prompt_of
from shared.pooling.texts.truncation import read_text_truncation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.engine.engine import Engine
    from shared.offline.pooling.params import PoolingParams
    from shared.pooling.encoder_pooler import EncoderPooler
    from shared.pooling.facts import PoolingFacts
    from shared.pooling.head import Head
    from shared.pooling.texts.text_input import VectorInput
    from shared.request.adapter_ref import AdapterRef
    from shared.text.chat_template import ChatTemplate
    from shared.text.tokenizer import Tokenizer

    FindAdapter = Callable[[object], AdapterRef | None]


#: The model itself refuses ids that it does not have.
_ANY_ID = 2**31


class Pool(Protocol):
    """Computes vectors in the caller's thread."""

    @property
    def facts(self) -> PoolingFacts:
        """What the model offers."""
        ...

    def pool(self, requests: Sequence[PoolRequest]) -> list[Pooled]:
        """Return the vectors, in the requests' order.

        Raises:
            BatonError: one cannot be served; nothing of the others remains.
        """
        ...


class EnginePool:
    """Of a decoder, by an engine that nothing else uses meanwhile."""

    def __init__(self, engine: Engine, head: Head) -> None:
        self._engine = engine
        self._head = head

    @property
    def facts(self) -> PoolingFacts:
        """See Pool."""
        return self._head.facts

    def pool(self, requests: Sequence[PoolRequest]) -> list[Pooled]:
        """See Pool."""
        engine, head = self._engine, self._head
        if engine.has_work():
            raise UnavailableError("the engine is at work: let its requests end first")
        for request in requests:
            head.check(request)
        waiting = {request.request_id: request for request in requests}
        found: dict[str, Pooled] = {}
        try:
            for request in requests:
                engine.add(engine_request(request, head.kind_of(request.task)))
            while waiting:
                for event in self._states():
                    request = waiting.pop(event.request_id)
                    found[event.request_id] = self._finished(request, event)
        finally:
            for request_id in waiting:
                engine.abort(request_id)
            while engine.has_work():
                engine.step()
        return [found[request.request_id] for request in requests]

    def _states(self) -> list[PromptStates]:
        """Compute a step; return what it brought.

        Raises:
            BatonError: a request has failed.
        """
        if not self._engine.has_work():
            self._engine.wait_for_news()
        events = self._engine.step()
        for event in events:
            if isinstance(event, Failed):
                raise event.error
        return [event for event in events if isinstance(event, PromptStates)]

    def _finished(self, request: PoolRequest, event: PromptStates) -> Pooled:
        rows = pooled_rows(request, self._head.kind_of(request.task), event)
        return Pooled(self._head.finish(request, rows), event.num_cached_tokens)


class EncoderPool:
    """Of an encoder, by its pooler's thread."""

    def __init__(self, pooler: EncoderPooler) -> None:
        self._pooler = pooler

    @property
    def facts(self) -> PoolingFacts:
        """See Pool."""
        return self._pooler.facts

    def pool(self, requests: Sequence[PoolRequest]) -> list[Pooled]:
        """See Pool."""

        async def all_of_them() -> list[Pooled]:
            return list(await asyncio.gather(*map(self._pooler.pool, requests)))

        return asyncio.run(all_of_them())


class OfflineVectors:
    """Texts in, numbers out."""

    def __init__(
        self,
        pool: Pool,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        find_adapter: FindAdapter,
    ) -> None:
        """`find_adapter`: returns what a program's `lora_request` stands for."""
        self._find_adapter = find_adapter
        self._pool = pool
        self._tokenizer = tokenizer
        self._template = template
        self._ids = count()

    @property
    def facts(self) -> PoolingFacts:
        """What the model offers."""
        return self._pool.facts

    def require(self, *tasks: PoolTask) -> None:
        """Check that the model offers one of these.

        Raises:
            UnsupportedError: it does not.
        """
        offered = self.facts.tasks
        if not offered.intersection(tasks):
            made = ", ".join(sorted(offered))
            raise UnsupportedError(f"the model makes {made}, not {' or '.join(tasks)}")

    def texts(
        self,
        prompts: Sequence[Any],
        params: Sequence[PoolingParams],
        task: PoolTask,
        adapters: Sequence[object],
    ) -> list[tuple[PoolRequest, Pooled]]:
        """Return the numbers of each text: a string, token ids, or a mapping with either.

        `adapters`: a program's `lora_request` for each text.

        Raises:
            InvalidRequestError: one of them cannot be served; nothing is computed.
        """
        self.require(task)
        requests = []
        each = zip(prompts, params, adapters, strict=True)
        for i, (prompt, own, lora_request) in enumerate(each):
            check_dimensions(self.facts, own.dimensions)
            text = self._reader(own).read(_content(prompt), param=f"prompts[{i}]")
            adapter = self._find_adapter(lora_request)
            requests.append(self._request(text, own, task, adapter))
        return list(zip(requests, self._pool.pool(requests), strict=True))

    def scores(
        self,
        ones: Sequence[str],
        others: Sequence[str],
        params: PoolingParams,
        *,
        lora_request: object = None,
    ) -> list[tuple[PoolRequest, float, int]]:
        """Return a request, its score and its cached tokens for each of `others`.

        Of an embedder, the score is the cosine of both embeddings.

        Raises:
            InvalidRequestError: the texts do not fit together, or cannot be served.
        """
        self.require(PoolTask.SCORE, PoolTask.EMBED)
        if not others or len(ones) not in (1, len(others)):
            message = f"there are {len(ones)} and {len(others)} texts: give one, or as many"
            raise InvalidRequestError(message, param="data_1")
        firsts = list(ones) * (len(others) if len(ones) == 1 else 1)
        if PoolTask.SCORE not in self.facts.tasks:
            return self._cosines(firsts, others, params, lora_request)
        adapter = self._find_adapter(lora_request)
        reader = PairReader(texts=self._reader(params), template=self._template)
        requests = [
            self._request(
                reader.read(one, other, params=("data_1", f"data_2[{i}]")),
                params,
                PoolTask.SCORE,
                adapter,
            )
            for i, (one, other) in enumerate(zip(firsts, others, strict=True))
        ]
        found = self._pool.pool(requests)
        return [
            (request, float(pooled.data[0]), pooled.num_cached_tokens)
            for request, pooled in zip(requests, found, strict=True)
        ]

    def _cosines(
        self,
        firsts: Sequence[str],
        others: Sequence[str],
        params: PoolingParams,
        lora_request: object,
    ) -> list[tuple[PoolRequest, float, int]]:
        known = dict.fromkeys((*firsts, *others))
        num = len(known)
        found = self.texts(list(known), [params] * num, PoolTask.EMBED, [lora_request] * num)
        by_text = dict(zip(known, found, strict=True))
        scores = []
        for one, other in zip(firsts, others, strict=True):
            (_, first), (request, second) = by_text[one], by_text[other]
            pair = first.data.to(torch.float64), second.data.to(torch.float64)
            cosine = float(cosine_similarity(*pair, dim=0))
            scores.append((request, cosine, first.num_cached_tokens + second.num_cached_tokens))
        return scores

    def _reader(self, params: PoolingParams) -> TextReader:
        truncation = read_text_truncation(params.truncate_prompt_tokens, params.truncation_side)
        return TextReader(
            tokenizer=self._tokenizer,
            vocab_size=_ANY_ID,
            facts=self.facts,
            truncation=truncation,
            prompt=prompt_of(self.facts, params.prompt_name),
        )

    def _request(
        self, text: VectorInput, params: PoolingParams, task: PoolTask, adapter: AdapterRef | None
    ) -> PoolRequest:
        is_embedding = task in (PoolTask.EMBED, PoolTask.TOKEN_EMBED)
        return PoolRequest(
            request_id=str(next(self._ids)),
            token_ids=text.token_ids,
            task=task,
            token_type_ids=text.token_type_ids or None,
            normalize=params.activates if is_embedding else None,
            dimensions=params.dimensions if task is PoolTask.EMBED else None,
            activate=None if is_embedding else params.activates,
            adapter=adapter,
        )


def _content(prompt: Any) -> str | Sequence[int]:
    """Return a prompt's text, or its tokens if it has some.

    Raises:
        InvalidRequestError: it has neither.
    """
    if hasattr(prompt, "keys"):
        found = prompt.get("prompt_token_ids") or prompt.get("prompt")
        if found is None:
            message = "a prompt needs prompt or prompt_token_ids"
            raise InvalidRequestError(message, param="prompts")
        return found  # type: ignore[no-any-return]
    if not isinstance(prompt, str | list | tuple):
        raise InternalError(f"a prompt is a {type(prompt).__name__}")
    return prompt
