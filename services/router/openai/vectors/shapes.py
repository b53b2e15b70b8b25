"""The replies of the endpoints of vectors."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Raw, UnsetType

from services.router.openai.replies.long_reply import filled
from services.router.openai.replies.responses import JSON

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from services.router.openai.vectors.schema import EncodingFields
    from services.router.usage import Usage
    from services.router.vectors.request import FoundVector

_DTYPES = {"float32": "f4", "float16": "f2"}
_ORDERS = {"native": "<", "little": "<", "big": ">"}


class CachedTokens(msgspec.Struct):
    """Tokens whose KV came from a cache."""

    cached_tokens: int


class VectorUsage(msgspec.Struct):
    """Token counts of a request."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens: int = 0


class EmbeddingData(msgspec.Struct):
    """The embedding of one text."""

    index: int
    #: Numbers, or a text in base64.
    embedding: Raw
    object: str = "embedding"


class PoolingData(msgspec.Struct):
    """The vector of one text, or of each of its tokens."""

    index: int
    #: As an embedding's; of the vectors of tokens, a list.
    data: Raw | list[list[float]]
    object: str = "pooling"


class ClassData(msgspec.Struct):
    """The classes of one text."""

    index: int
    #: The most likely one; null if the checkpoint has no names.
    label: str | None
    probs: list[float]
    num_classes: int


class ScoreData(msgspec.Struct):
    """The score of one pair."""

    index: int
    score: float
    object: str = "score"


class VectorList(msgspec.Struct):
    """The vectors, classes or scores of all texts, in their order."""

    id: str
    created: int
    model: str
    data: list[EmbeddingData] | list[PoolingData] | list[ClassData] | list[ScoreData]
    usage: VectorUsage
    object: str = "list"


class DocumentText(msgspec.Struct):
    """A document of the request."""

    text: str


class RankedData(msgspec.Struct):
    """One document's place."""

    index: int
    relevance_score: float
    document: DocumentText | UnsetType = UNSET


class Ranking(msgspec.Struct):
    """The documents, best first."""

    id: str
    model: str
    usage: VectorUsage
    results: list[RankedData]


def usage_body(usage: Usage) -> VectorUsage:
    """Return the usage for a reply."""
    details = CachedTokens(usage.cached_tokens)
    return VectorUsage(usage.prompt_tokens, usage.prompt_tokens, details)


def embedding_item(vector: FoundVector, fields: EncodingFields) -> Iterable[bytes]:
    """Return the JSON of a text's embedding."""
    yield JSON.encode(EmbeddingData(vector.index, _written(vector.numbers[0], fields)))


def pooling_item(
    vector: FoundVector, fields: EncodingFields, *, each_token: bool
) -> Iterable[bytes]:
    """Return the JSON of a text's vector, or of the vectors of its tokens, in pieces."""
    if not each_token:
        yield JSON.encode(PoolingData(vector.index, _written(vector.numbers[0], fields)))
    elif fields.encoding_format == "base64":
        yield JSON.encode(PoolingData(vector.index, _written(vector.numbers, fields)))
    else:
        rows = ((JSON.encode(row.tolist()),) for row in vector.numbers)
        yield from filled(PoolingData(vector.index, []), rows)


def class_item(vector: FoundVector, labels: Sequence[str]) -> Iterable[bytes]:
    """Return the JSON of a text's classes."""
    probs = vector.numbers[0].tolist()
    best = max(range(len(probs)), key=probs.__getitem__)
    label = labels[best] if best < len(labels) else None
    yield JSON.encode(ClassData(vector.index, label, probs, len(probs)))


def _written(numbers: NDArray[np.float32], fields: EncodingFields) -> Raw:
    if fields.encoding_format != "base64":
        return Raw(JSON.encode(numbers.tolist()))
    order = _ORDERS[fields.endianness or "native"]
    dtype = order + _DTYPES[fields.embed_dtype or "float32"]
    return Raw(b'"%b"' % b64encode(numbers.astype(dtype).tobytes()))
