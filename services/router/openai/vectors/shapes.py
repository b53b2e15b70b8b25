"""The replies of the endpoints of vectors."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from services.router.openai.vectors.schema import EncodingFields
    from services.router.usage import Usage

#: Numbers in JSON, or as bytes in base64.
Numbers = list[float] | list[list[float]] | str
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
    embedding: Numbers
    object: str = "embedding"


class PoolingData(msgspec.Struct):
    """The vector of one text, or of each of its tokens."""

    index: int
    data: Numbers
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


def written(numbers: NDArray[np.float32], fields: EncodingFields) -> Numbers:
    """Return the numbers as the request wants them."""
    if fields.encoding_format != "base64":
        found: list[float] | list[list[float]] = numbers.tolist()
        return found
    order = _ORDERS[fields.endianness or "native"]
    dtype = order + _DTYPES[fields.embed_dtype or "float32"]
    return b64encode(numbers.astype(dtype).tobytes()).decode()
