"""A long reply comes in chunks, and is the text that one encoding would be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from services.router.openai.replies.long_reply import CHUNK_BYTES, filled, long_reply

if TYPE_CHECKING:
    from starlette.types import Message


class Head(msgspec.Struct):
    model: str
    data: list[Any]
    end: int = 7


async def sent(pieces: list[bytes]) -> list[Message]:
    messages = []

    async def send(message: Message) -> None:
        messages.append(message)

    reply = await long_reply(pieces, size=sum(map(len, pieces)))
    await reply({"type": "http"}, None, send)  # type: ignore[arg-type]  # it receives nothing
    return messages


async def test_a_long_reply_is_sent_in_chunks() -> None:
    item = b'"%b"' % (b"x" * 999)
    pieces = list(filled(Head('"data":[]', []), ((item,) for _ in range(500))))
    start, *bodies = await sent(pieces)
    text = b"".join(message["body"] for message in bodies)
    assert json.loads(text) == {"model": '"data":[]', "data": ["x" * 999] * 500, "end": 7}
    headers = dict(start["headers"])
    assert headers[b"content-length"] == str(len(text)).encode()
    assert headers[b"content-type"] == b"application/json"
    assert len(bodies) == -(-len(text) // CHUNK_BYTES)
    assert [message["more_body"] for message in bodies] == [True] * (len(bodies) - 1) + [False]


async def test_items_may_be_lists_in_pieces_and_none_at_all() -> None:
    inner = filled(Head("a", []), [(b"1", b"2"), (b"3",)])
    assert json.loads(b"".join(filled(Head("b", []), [inner]))) == {
        "model": "b",
        "data": [{"model": "a", "data": [12, 3], "end": 7}],
        "end": 7,
    }
    [_, body] = await sent(list(filled(Head("b", []), [])))
    assert (json.loads(body["body"])["data"], body["more_body"]) == ([], False)
