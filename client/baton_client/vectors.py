"""Vectors, scores and classes of texts: their requests and their results."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from baton_client import checks, contract
from baton_client.errors import InternalError, invalid
from baton_client.fields import write_integers, write_scalar
from baton_client.responses import read_usage
from baton_client.types import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Text = str | Sequence[int]


class PoolOptions(TypedDict, total=False):
    """Keyword arguments of every request for vectors."""

    #: Needed only if more than one model is served.
    model: str
    #: Lower runs first.
    priority: int
    #: Id of the request in logs; made by the server if left out.
    request_id: str
    #: Keep at most this number of a text's tokens; -1: as many as the model takes.
    truncate_prompt_tokens: int | None
    #: The side that is cut off; by default the right.
    truncation_side: Literal["left", "right"] | None
    #: Whether embeddings get the length 1, and logits become scores; by default as the checkpoint
    #: says.
    use_activation: bool | None
    #: Longest time of the whole request, retries included; by default the client's.
    timeout_s: float


class EmbedOptions(PoolOptions, total=False):
    """Keyword arguments of a request for embeddings."""

    #: Leading numbers of each vector that are wanted.
    dimensions: int | None
    #: Name of the checkpoint's prompt in front of each text; "" is none.
    prompt_name: str | None
    #: One vector for each token of a text.
    each_token: bool


class ScoreOptions(PoolOptions, total=False):
    """Keyword arguments of a request for scores."""

    #: What relevance means, for models that take it.
    instruction: str | None


class RerankOptions(ScoreOptions, total=False):
    """Keyword arguments of a request to order documents."""

    #: Return this number of them, the best; by default all.
    top_n: int | None


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vector of one text, or of each of its tokens."""

    #: float32, one row after the other. `numpy.asarray` shares its memory.
    numbers: array[float] = field(repr=False)
    num_rows: int = 1

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return len(self.numbers) // self.num_rows

    @property
    def rows(self) -> tuple[array[float], ...]:
        """The rows: one for the text, or one for each of its tokens."""
        size = self.size
        return tuple(self.numbers[i * size : (i + 1) * size] for i in range(self.num_rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """The vectors of a request's texts, in their order."""

    request_id: str
    vectors: tuple[Embedding, ...]
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedDocument:
    """A document's place."""

    #: Of the document in the request.
    index: int
    relevance_score: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Documents, best first."""

    request_id: str
    results: tuple[RankedDocument, ...]
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One score for each pair."""

    request_id: str
    scores: tuple[float, ...]
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextClass:
    """The classes of a text."""

    #: The most likely one; empty if the checkpoint has no names.
    label: str
    probs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """The classes of a request's texts, in their order."""

    request_id: str
    results: tuple[TextClass, ...]
    usage: Usage = field(default_factory=Usage)


def embed_request(
    inputs: str | Sequence[Text], options: Mapping[str, Any]
) -> contract.EmbedRequest:
    """Return the message for vectors of texts, or of lists of token ids.

    Raises:
        InvalidRequestError: a value is not of its option's type; `param` names it.
    """
    request = contract.EmbedRequest()
    _write_inputs(request.inputs, inputs)
    _write_options(request, options, own=("dimensions", "prompt_name", "each_token"))
    return request


def classify_request(
    inputs: str | Sequence[Text], options: Mapping[str, Any]
) -> contract.ClassifyRequest:
    """Return the message for classes of texts; see `embed_request`."""
    request = contract.ClassifyRequest()
    _write_inputs(request.inputs, inputs)
    _write_options(request, options, own=())
    return request


def rerank_request(
    query: str, documents: Sequence[str], options: Mapping[str, Any]
) -> contract.RerankRequest:
    """Return the message for an order of documents; see `embed_request`."""
    request = contract.RerankRequest(query=checks.text("query", query))
    request.documents.extend(checks.texts("documents", documents))
    _write_options(request, options, own=("top_n", "instruction"))
    return request


def score_request(
    queries: str | Sequence[str], documents: str | Sequence[str], options: Mapping[str, Any]
) -> contract.ScoreRequest:
    """Return the message for scores of pairs; see `embed_request`."""
    request = contract.ScoreRequest()
    request.queries.extend(_texts("queries", queries))
    request.documents.extend(_texts("documents", documents))
    _write_options(request, options, own=("instruction",))
    return request


def read_embeddings(messages: Iterable[contract.EmbedResponse], num_texts: int) -> Embeddings:
    """Return the vectors of all texts.

    Raises:
        InternalError: the server has sent none of one of them.
    """
    found: dict[int, Embedding] = {}
    request_id, usage = "", Usage()
    for message in messages:
        request_id = message.request_id
        found[message.index] = _embedding(message.vector)
        if message.HasField("usage"):
            usage = read_usage(message.usage)
    if len(found) != num_texts:
        text = f"the server sent {len(found)} of {num_texts} vectors"
        raise InternalError(text, request_id=request_id)
    vectors = tuple(found[index] for index in range(num_texts))
    return Embeddings(request_id=request_id, vectors=vectors, usage=usage)


def read_ranking(message: contract.RerankResponse, documents: Sequence[str]) -> Ranking:
    """Return the documents, best first."""
    return Ranking(
        request_id=message.request_id,
        results=tuple(
            RankedDocument(
                index=each.index,
                relevance_score=each.relevance_score,
                text=documents[each.index],
            )
            for each in message.results
        ),
        usage=read_usage(message.usage),
    )


def read_scores(message: contract.ScoreResponse) -> Scores:
    """Return the scores."""
    return Scores(
        request_id=message.request_id,
        scores=tuple(message.scores),
        usage=read_usage(message.usage),
    )


def read_classes(message: contract.ClassifyResponse) -> Classes:
    """Return the classes."""
    return Classes(
        request_id=message.request_id,
        results=tuple(
            TextClass(label=each.label, probs=tuple(each.probs)) for each in message.results
        ),
        usage=read_usage(message.usage),
    )


def _embedding(message: contract.Vector) -> Embedding:
    numbers = array("f", message.data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return Embedding(numbers, message.num_rows)


def _texts(param: str, value: str | Sequence[str]) -> Sequence[str]:
    return checks.texts(param, [value] if isinstance(value, str) else value)


def _write_inputs(target: Any, inputs: str | Sequence[Text]) -> None:
    given = [inputs] if isinstance(inputs, str) else checks.items("inputs", inputs)
    for i, text in enumerate(given):
        param, prompt = f"inputs[{i}]", target.add()
        if isinstance(text, str):
            prompt.text = checks.text(param, text)
        else:
            write_integers(prompt.tokens.ids, text, param=param)
            prompt.tokens.SetInParent()


def _write_options(request: Any, options: Mapping[str, Any], *, own: Iterable[str]) -> None:
    own_names = {"model", "request_id", *own}
    for name, value in options.items():
        if value is None or name == "timeout_s":
            continue
        if name == "truncation_side" and value not in ("left", "right"):
            raise invalid(name, "it must be left or right")
        write_scalar(request if name in own_names else request.options, name, value, param=name)
