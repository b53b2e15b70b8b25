"""A reply with a long list: encoded and sent in pieces, so that no other stream waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from services.router.openai.replies.responses import JSON, json_response
from shared.aside import aside
from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import msgspec
    from starlette.types import Receive, Scope, Send

#: Tokens or numbers of a reply that is made at once.
INLINE_SIZE = 1024
#: Bytes that are sent at a time.
CHUNK_BYTES = 64 * 1024


class LongReply(Response):
    """JSON in chunks. One text of them would be a copy during which everything waits."""

    media_type = "application/json"

    def __init__(self, chunks: list[bytes]) -> None:
        """Send the chunks one behind the other."""
        super().__init__()
        self.headers["content-length"] = str(sum(map(len, chunks)))
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole response."""
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        last = len(self._chunks) - 1
        for i, chunk in enumerate(self._chunks):
            await send({"type": "http.response.body", "body": chunk, "more_body": i < last})


async def answers_reply(whole: Any) -> Response:
    """Return the reply of an object with whole answers, its `choices`: one by one, if it is long.

    Any other object is encoded in one go. `whole` has no choices afterwards.
    """
    choices = list(getattr(whole, "choices", ()))
    size = whole.usage.total_tokens if choices else 0
    if size <= INLINE_SIZE:
        return json_response(whole)
    whole.choices = []
    return await long_reply(filled(whole, _taken(choices), field="choices"), size=size)


def _taken(choices: list[Any]) -> Iterator[tuple[bytes]]:
    """Yield the JSON of each one, and free it here: a thousand tokens have many objects."""
    choices.reverse()
    while choices:
        yield (JSON.encode(choices.pop()),)


async def long_reply(pieces: Iterable[bytes], *, size: int) -> LongReply:
    """Return the reply that these pieces are, made in a thread if there are many.

    `size`: about how many numbers and characters they have.
    """
    chunks = await aside(size, lambda: list(_chunks(pieces)), inline=INLINE_SIZE)
    return LongReply(chunks)


def filled(
    head: msgspec.Struct, items: Iterable[Iterable[bytes]], *, field: str = "data"
) -> Iterator[bytes]:
    """Yield the JSON of `head` with items in its list `field`, which is empty; each in pieces."""
    # Quotes within texts are escaped, so no text has this.
    place = b'"%b":[]' % field.encode()
    before, found, after = JSON.encode(head).partition(place)
    if not found:
        raise InternalError("the object has no place for items")
    yield b"%b%b" % (before, place[:-1])
    for i, item in enumerate(items):
        if i:
            yield b","
        yield from item
    yield b"]%b" % after


def _chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    chunk = bytearray()
    for piece in pieces:
        chunk += piece
        if len(chunk) >= CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk)
