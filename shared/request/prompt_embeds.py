"""Embeddings that a prompt gives in place of tokens.

A prompt is a tuple of token ids with `NO_TOKEN` where it gives an embedding, and beside it the
`PromptEmbeds`. NO_TOKEN is no token anywhere: reading it as one fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import InvalidRequestError
from shared.kv.identity import NO_TOKEN, KVIdentity, embedding_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "NO_TOKEN",
    "PARAM",
    "EmbeddingRows",
    "EmbedsDtype",
    "PlacedRows",
    "PromptEmbeds",
    "identity_of",
    "known_tokens",
    "shown_ids",
]

#: The field's name for clients.
PARAM = "prompt_embeds"


class EmbedsDtype(StrEnum):
    """Dtype of rows; the worker computes with the model's."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return 4 if self is EmbedsDtype.FLOAT32 else 2


@dataclass(frozen=True)
class EmbeddingRows:
    """Finite numbers [num_rows, width], little-endian; at least one row."""

    dtype: EmbedsDtype
    width: int
    data: bytes

    def __post_init__(self) -> None:
        if self.width < 1 or not self.data or len(self.data) % self.row_bytes:
            raise InvalidRequestError(
                f"{PARAM}: {len(self.data)} bytes are no rows of {self.width} numbers in "
                f"{self.dtype.value}",
                param=PARAM,
            )
        if not _are_finite(self.dtype, self.data):
            raise InvalidRequestError(f"{PARAM} must hold finite numbers only", param=PARAM)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * self.dtype.itemsize

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.data) // self.row_bytes

    def bytes_of(self, first: int, end: int) -> bytes:
        """Return the bytes of some rows."""
        return self.data[first * self.row_bytes : end * self.row_bytes]

    def cut(self, first: int, end: int) -> EmbeddingRows:
        """Return some rows; at least one."""
        return EmbeddingRows(self.dtype, self.width, self.bytes_of(first, end))

    @cached_property
    def digests(self) -> tuple[bytes, ...]:
        """The digest of each row. Slow for many rows; computed once."""
        dtype = self.dtype.value
        return tuple(embedding_digest(dtype, self.bytes_of(i, i + 1)) for i in range(self.num_rows))


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Rows in place of a prompt's tokens from position `start` on."""

    start: int
    rows: EmbeddingRows

    @property
    def end(self) -> int:
        """Position after the last one."""
        return self.start + self.rows.num_rows


@dataclass(frozen=True)
class PromptEmbeds:
    """All embeddings that a prompt gives: in the order of their positions, without overlap."""

    parts: tuple[PlacedRows, ...]

    def __post_init__(self) -> None:
        if not self.parts or self.parts[0].start < 0:
            raise InvalidRequestError(f"{PARAM} must have rows", param=PARAM)
        if any(before.end > part.start for before, part in pairwise(self.parts)):
            raise InvalidRequestError(f"{PARAM} are in one place twice", param=PARAM)
        if len({part.rows.width for part in self.parts}) > 1:
            raise InvalidRequestError(f"{PARAM} have rows of different widths", param=PARAM)

    @classmethod
    def whole(cls, rows: EmbeddingRows) -> PromptEmbeds:
        """Return those of a prompt without any token."""
        return cls((PlacedRows(0, rows),))

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.parts[0].rows.width

    @property
    def num_bytes(self) -> int:
        """Memory of the rows."""
        return sum(len(part.rows.data) for part in self.parts)

    @cached_property
    def digests(self) -> Mapping[int, bytes]:
        """By position: the digest of the row there. For `KVIdentity`; it does not keep the rows."""
        return {
            part.start + i: own for part in self.parts for i, own in enumerate(part.rows.digests)
        }

    def within(self, first: int, end: int) -> Iterator[tuple[int, EmbeddingRows, bytes]]:
        """Yield the rows at positions [first, end): where each part begins, its kind, its bytes."""
        for part in self.parts:
            begin, stop = max(first, part.start), min(end, part.end)
            if begin < stop:
                data = part.rows.bytes_of(begin - part.start, stop - part.start)
                yield begin, part.rows, data

    def between(self, first: int, end: int) -> PromptEmbeds | None:
        """Return those of a part of the prompt; None if it has none."""
        parts = tuple(
            PlacedRows(
                max(first, part.start) - first,
                part.rows.cut(max(first, part.start) - part.start, min(end, part.end) - part.start),
            )
            for part in self.parts
            if max(first, part.start) < min(end, part.end)
        )
        return PromptEmbeds(parts) if parts else None

    @property
    def whole_ids(self) -> tuple[int, ...]:
        """The ids of a prompt that is these rows alone."""
        return (NO_TOKEN,) * self.parts[-1].end

    def check(self, token_ids: Sequence[int]) -> None:
        """Check that a prompt has NO_TOKEN exactly where there is a row.

        Raises:
            InvalidRequestError: it has not.
        """
        places = {i for i, token in enumerate(token_ids) if token == NO_TOKEN}
        given = {i for part in self.parts for i in range(part.start, part.end)}
        if places != given:
            raise InvalidRequestError(
                f"{PARAM} are not where the prompt has no token: {len(given)} rows, "
                f"{len(places)} places",
                param=PARAM,
            )


def identity_of(
    namespace: bytes, *, salt: bytes, embeds: PromptEmbeds | None, adapter: bytes = b""
) -> KVIdentity:
    """Return the identity of a prompt's blocks. `adapter`: its digest; empty: there is none."""
    digests = {} if embeds is None else embeds.digests
    return KVIdentity(namespace, salt=salt, adapter=adapter, embeds=digests)


def known_tokens(token_ids: Iterable[int]) -> tuple[int, ...]:
    """Return the tokens of a prompt: what stands before an answer as text."""
    return tuple(token for token in token_ids if token != NO_TOKEN)


def shown_ids(token_ids: Iterable[int]) -> tuple[int, ...]:
    """Return a prompt's ids for its sender: 0 where it gave an embedding, as in vLLM."""
    return tuple(0 if token == NO_TOKEN else token for token in token_ids)


def _are_finite(dtype: EmbedsDtype, data: bytes) -> bool:
    match dtype:
        case EmbedsDtype.FLOAT32:
            return bool(np.isfinite(np.frombuffer(data, "<f4")).all())
        case EmbedsDtype.FLOAT16:
            return bool(np.isfinite(np.frombuffer(data, "<f2")).all())
        case EmbedsDtype.BFLOAT16:
            exponents = np.frombuffer(data, "<u2") & 0x7F80
            return bool((exponents != 0x7F80).all())
