"""A reply with a long list: encoded and sent in pieces, so that no other stream waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from services.router.openai.replies.responses import JSON
from shared.aside import aside
from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import msgspec
    from starlette.types import Receive, Scope, Send

#: Bytes that are sent at a time.
CHUNK_BYTES = 64 * 1024
#: The empty list of an object. Quotes within its texts are escaped, so no text has it.
_PLACE = b'"data":[]'


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


async def long_reply(pieces: Iterable[bytes], *, size: int) -> LongReply:
    """Return the reply that these pieces are, made in a thread if there are many.

    `size`: about how many numbers and characters they have.
    """
    return LongReply(await aside(size, lambda: list(_chunks(pieces))))


def filled(head: msgspec.Struct, items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the JSON of `head` with items in its list `data`, which is empty; each in pieces."""
    before, found, after = JSON.encode(head).partition(_PLACE)
    if not found:
        raise InternalError("the object has no place for items")
    yield b"%b%b" % (before, _PLACE[:-1])
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
