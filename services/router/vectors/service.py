"""Everything about vectors that both front ends offer: embeddings, classes, scores of pairs."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from services.router.admission.tenant import ANONYMOUS, Tenant
from services.router.request.no_answers import no_answers
from services.router.usage import Usage
from services.router.vectors.request import VectorRequest
from shared.aside import aside
from shared.errors import InternalError, InvalidRequestError, NoWorkerError, UnsupportedError
from shared.generation.limits import (
    DEFAULT_LIMITS,
    FLOAT_BYTES,
    RequestLimits,
    check_inputs,
    check_num_tokens,
    check_texts,
    check_token_vectors,
)
from shared.pooling.facts import PoolTask
from shared.pooling.texts.pairs import PairReader
from shared.pooling.texts.reader import TextReader, check_dimensions, prompt_of
from shared.rpc.server import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from numpy.typing import NDArray

    from services.router.models import ServedModels
    from services.router.vectors.request import FoundVector, Vectorizer
    from services.router.workers.endpoint import OfferedVectors
    from shared.pooling.facts import PoolingFacts
    from shared.pooling.texts.text_input import VectorInput
    from shared.pooling.texts.truncation import TextTruncation
    from shared.text.chat_template import ChatTemplate
    from shared.text.tokenizer import Tokenizer

_INT32 = 2**31
#: A worker's message has room for a text's vectors, and for the rest of it.
MAX_VECTOR_BYTES = MAX_MESSAGE_BYTES - 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request says besides its texts."""

    request_id: str
    #: The names by which its client may abort it.
    names: tuple[str, ...] = ()
    model: str | None = None
    task: PoolTask = PoolTask.EMBED
    #: Whether embeddings get the length 1, and logits become scores; None: as the checkpoint says.
    use_activation: bool | None = None
    dimensions: int | None = None
    #: Of the checkpoint's prompts; None: its default.
    prompt_name: str | None = None
    #: Of pairs, for models that take one.
    instruction: str | None = None
    truncation: TextTruncation | None = None
    add_special_tokens: bool = True
    priority: int = 0
    tenant: Tenant = ANONYMOUS
    cache_salt: bytes = b""
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Found:
    """The vectors of all texts, in their order, and what they cost."""

    vectors: list[FoundVector]
    usage: Usage = field(default_factory=Usage)

    def rows(self) -> list[NDArray[np.float32]]:
        """Return the first row of each vector."""
        return [vector.numbers[0] for vector in self.vectors]


class Vectors:
    """Makes requests for vectors of texts, and scores of vectors."""

    def __init__(
        self,
        *,
        vectorizer: Vectorizer,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        models: ServedModels,
        offered: Callable[[], OfferedVectors | None],
        hidden_size: int | None = None,
        limits: RequestLimits = DEFAULT_LIMITS,
    ) -> None:
        """`offered` returns the vectors that the workers make; it raises NoWorkerError if there
        are none that could say it. `hidden_size`: numbers of a token's vector, if its files say so.
        """
        self._hidden_size = hidden_size
        self._vectorizer = vectorizer
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._models = models
        self._offered = offered
        self._limits = limits

    def facts(self, model: str | None, *tasks: PoolTask) -> PoolingFacts:
        """Return what the model offers, which is one of `tasks` at least.

        Raises:
            ModelNotFoundError: neither a model nor an adapter has this name.
            NoWorkerError: no worker can say what it offers.
            UnsupportedError: it makes no vectors, or none of these kinds.
        """
        name = self._models.resolve(model).name
        offered = self._offered()
        if offered is None:
            raise UnsupportedError(
                f"the model {name} generates text and makes no vectors: ask for an embedding "
                "model, or start its prefill workers with --convert embed",
                param="model",
            )
        if not offered.facts.tasks.intersection(tasks):
            made = ", ".join(sorted(offered.facts.tasks)) or "nothing"
            wanted = " or ".join(tasks)
            message = f"the model {name} makes {made}, not {wanted}: ask for another model"
            raise UnsupportedError(message, param="model")
        return offered.facts

    def require_answers(self) -> None:
        """Refuse a request for an answer of a model that makes vectors alone.

        Raises:
            UnsupportedError: it does.
        """
        try:
            offered = self._offered()
        except NoWorkerError:
            return  # routing knows whether a worker can answer
        if offered is not None and offered.is_only:
            raise no_answers(self._models.names[0])

    async def read(
        self, texts: Sequence[str | Sequence[int]], wish: Wish, *, param: str = "input"
    ) -> VectorRequest:
        """Return the request for vectors of texts, or of tokens. `param`: the field with them.

        Raises:
            InvalidRequestError: one of them is empty or too long, or another field is wrong.
        """
        facts = self.facts(wish.model, wish.task)
        check_inputs(len(texts), self._limits, param=param)
        strings = [text for text in texts if isinstance(text, str)]
        check_texts(strings, self._limits, param=param)
        if wish.task in (PoolTask.EMBED, PoolTask.TOKEN_EMBED):
            check_dimensions(facts, wish.dimensions)
        reader = self._reader(wish, facts)
        names = [param] if len(texts) == 1 else _each(param, len(texts))
        inputs = await aside(
            sum(map(len, texts)),
            lambda: reader.read_all(texts, names),
        )
        if wish.task is PoolTask.TOKEN_EMBED:
            size = wish.dimensions or self._hidden_size or facts.size
            for name, each in zip(names, inputs, strict=True):
                _check_message(len(each.token_ids), size, param=name)
            num_tokens = sum(len(each.token_ids) for each in inputs)
            check_token_vectors(num_tokens, size, self._limits, param=param)
        return self._request(inputs, wish, facts, names)

    async def found(self, request: VectorRequest) -> Found:
        """Return the vectors of all texts.

        Raises:
            BatonError: see Vectorizer.
        """
        vectors: list[FoundVector | None] = [None] * len(request.inputs)
        async with aclosing(self.stream(request)) as stream:
            async for vector in stream:
                vectors[vector.index] = vector
        known = [vector for vector in vectors if vector is not None]
        if len(known) < len(vectors):
            raise InternalError(f"request {request.request_id}: a text has no vector")
        return Found(known, usage_of(known))

    def stream(self, request: VectorRequest) -> AsyncGenerator[FoundVector, None]:
        """Yield the vectors as they become known; see Vectorizer."""
        # The contract promises an iterator with `aclose`, which its type cannot express.
        return cast("AsyncGenerator[FoundVector]", self._vectorizer.vectors(request))

    async def scores(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        wish: Wish,
        *,
        params: tuple[str, str] = ("query", "documents"),
    ) -> tuple[list[float], Usage]:
        """Return a score for each document: how well it answers its query, or the only one.

        A model for pairs scores both texts together; of an embedder it is the cosine of the two.
        `params`: the fields with the texts.

        Raises:
            InvalidRequestError: the texts do not fit together, or see `read`.
        """
        facts = self.facts(wish.model, PoolTask.SCORE, PoolTask.EMBED)
        _check_counts(queries, documents, params)
        check_inputs(len(documents), self._limits, param=params[1])
        check_texts((*queries, *documents), self._limits, param=params[1])
        if PoolTask.SCORE in facts.tasks:
            return await self._pair_scores(queries, documents, wish, facts, params)
        return await self._cosines(queries, documents, wish, facts, params)

    async def _pair_scores(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        wish: Wish,
        facts: PoolingFacts,
        params: tuple[str, str],
    ) -> tuple[list[float], Usage]:
        reader = PairReader(
            texts=self._reader(wish, facts),
            template=self._chat_template,
            instruction=wish.instruction,
        )
        pairs = [
            (queries[i if len(queries) > 1 else 0], text, (params[0], f"{params[1]}[{i}]"))
            for i, text in enumerate(documents)
        ]
        inputs = await aside(
            sum(len(one) + len(other) for one, other, _ in pairs),
            lambda: [reader.read(one, other, params=names) for one, other, names in pairs],
        )
        names = [names[1] for *_, names in pairs]
        request = self._request(inputs, wish, facts, names, task=PoolTask.SCORE)
        found = await self.found(request)
        return [float(row[0]) for row in found.rows()], found.usage

    async def _cosines(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        wish: Wish,
        facts: PoolingFacts,
        params: tuple[str, str],
    ) -> tuple[list[float], Usage]:
        reader = self._reader(wish, facts)
        names = [
            f"{params[0]}[{i}]" if len(queries) > 1 else params[0] for i in range(len(queries))
        ]
        names += [f"{params[1]}[{i}]" for i in range(len(documents))]
        texts = (*queries, *documents)
        inputs = await aside(sum(map(len, texts)), lambda: reader.read_all(texts, names))
        request = self._request(inputs, wish, facts, names, task=PoolTask.EMBED)
        found = await self.found(request)
        rows = [_unit(row) for row in found.rows()]
        ones, others = rows[: len(queries)], rows[len(queries) :]
        scores = [float(ones[i if len(ones) > 1 else 0] @ other) for i, other in enumerate(others)]
        return scores, found.usage

    def _reader(self, wish: Wish, facts: PoolingFacts) -> TextReader:
        return TextReader(
            tokenizer=self._tokenizer,
            vocab_size=self._models.vocab_size,
            facts=facts,
            truncation=wish.truncation,
            add_special_tokens=wish.add_special_tokens,
            prompt=prompt_of(facts, wish.prompt_name),
        )

    def _request(
        self,
        inputs: Sequence[VectorInput],
        wish: Wish,
        facts: PoolingFacts,
        names: Sequence[str],
        *,
        task: PoolTask | None = None,
    ) -> VectorRequest:
        if not -_INT32 <= wish.priority < _INT32:
            message = f"priority must fit 32 bits, not {wish.priority}"
            raise InvalidRequestError(message, param="priority")
        for each, name in zip(inputs, names, strict=True):
            check_num_tokens(len(each.token_ids), self._limits, param=name)
        task = wish.task if task is None else task
        is_embedding = task in (PoolTask.EMBED, PoolTask.TOKEN_EMBED)
        asked = self._models.resolve(wish.model)
        return VectorRequest(
            request_id=wish.request_id,
            names=wish.names,
            model=asked.name,
            adapter=asked.adapter,
            inputs=tuple(inputs),
            task=task,
            normalize=wish.use_activation if is_embedding else None,
            dimensions=wish.dimensions if is_embedding else None,
            activate=None if is_embedding else wish.use_activation,
            is_causal=facts.is_causal,
            priority=wish.priority,
            tenant=wish.tenant,
            cache_salt=wish.cache_salt,
            arrival_s=wish.arrival_s,
        )


def ranked(scores: Sequence[float], top_n: int | None) -> list[int]:
    """Return the places of the `top_n` greatest scores, or of all, the greatest first.

    Equal scores keep their order.
    """
    return sorted(range(len(scores)), key=lambda place: -scores[place])[:top_n]


def usage_of(vectors: Sequence[FoundVector]) -> Usage:
    """Return what vectors cost."""
    num_tokens = sum(vector.num_tokens for vector in vectors)
    num_cached = sum(vector.num_cached_tokens for vector in vectors)
    return Usage(
        prompt_tokens=num_tokens,
        cached_tokens=num_cached,
        computed_tokens=num_tokens - num_cached,
        local_hit_tokens=num_cached,
    )


def _check_counts(
    queries: Sequence[str], documents: Sequence[str], params: tuple[str, str]
) -> None:
    for texts, param in zip((queries, documents), params, strict=True):
        if not texts:
            raise InvalidRequestError(f"{param} must not be empty", param=param)
    if len(queries) not in (1, len(documents)):
        message = (
            f"{params[0]} must be one text, or as many as {params[1]}: "
            f"there are {len(queries)} and {len(documents)}"
        )
        raise InvalidRequestError(message, param=params[0])


def _check_message(num_tokens: int, size: int, *, param: str) -> None:
    """Refuse a text whose tokens' vectors fit no message of a worker."""
    most = MAX_VECTOR_BYTES // (size * FLOAT_BYTES)
    if num_tokens > most:
        message = (
            f"{param} has {num_tokens} tokens, and at most {most} of a text can have vectors of "
            "their own: shorten it, or set truncate_prompt_tokens"
        )
        raise InvalidRequestError(message, param=param)


def _each(param: str, count: int) -> list[str]:
    return [f"{param}[{i}]" for i in range(count)]


def _unit(row: NDArray[np.float32]) -> NDArray[np.float64]:
    long = row.astype(np.float64)
    norm = float(np.linalg.norm(long))
    return long / norm if norm else long
