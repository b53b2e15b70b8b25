"""Prompts with embeddings on the wire, both ways, for every process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.v1 import common_pb2
from shared.errors import InvalidRequestError
from shared.request.prompt_embeds import (
    NO_TOKEN,
    PARAM,
    EmbeddingRows,
    EmbedsDtype,
    PlacedRows,
    PromptEmbeds,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

#: NO_TOKEN as uint32. Workers that do not know it refuse it: it is in no vocabulary.
_WIRE_NO_TOKEN = 2**32 - 1


def rows_to_wire(rows: EmbeddingRows) -> common_pb2.EmbeddingRows:
    """Return the message."""
    return common_pb2.EmbeddingRows(dtype=rows.dtype.value, width=rows.width, rows=rows.data)


def rows_from_wire(message: common_pb2.EmbeddingRows) -> EmbeddingRows:
    """Return the rows.

    Raises:
        InvalidRequestError: these are no rows of finite numbers.
    """
    if message.dtype not in set(EmbedsDtype):
        known = ", ".join(EmbedsDtype)
        text = f"{PARAM}: the dtype is one of {known}, not {message.dtype[:64]!r}"
        raise InvalidRequestError(text, param=PARAM)
    return EmbeddingRows(EmbedsDtype(message.dtype), message.width, message.rows)


def embeds_to_wire(embeds: PromptEmbeds | None) -> list[common_pb2.PlacedRows]:
    """Return the messages; none without embeddings."""
    return [
        common_pb2.PlacedRows(first_token=part.start, rows=rows_to_wire(part.rows))
        for part in (() if embeds is None else embeds.parts)
    ]


def embeds_from_wire(messages: Sequence[common_pb2.PlacedRows]) -> PromptEmbeds | None:
    """Return the embeddings; None if there are none.

    Raises:
        InvalidRequestError: one of them is none, or two are in one place.
    """
    if not messages:
        return None
    return PromptEmbeds(tuple(PlacedRows(m.first_token, rows_from_wire(m.rows)) for m in messages))


def ids_to_wire(token_ids: Sequence[int], embeds: PromptEmbeds | None) -> Sequence[int]:
    """Return a prompt's ids as uint32."""
    if embeds is None:
        return token_ids
    return [_WIRE_NO_TOKEN if token == NO_TOKEN else token for token in token_ids]


def ids_from_wire(token_ids: Sequence[int], embeds: PromptEmbeds | None) -> Sequence[int]:
    """Return a prompt's ids; without embeddings every id is that of a token."""
    if embeds is None:
        return token_ids
    return [NO_TOKEN if token == _WIRE_NO_TOKEN else token for token in token_ids]
