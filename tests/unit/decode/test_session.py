"""What a session's messages say of tokens, to routers that read them in two lists or do not."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from baton.v1 import common_pb2, decode_pb2
from services.decode.session import MAX_PLAIN_TOKENS, AnswerSession

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

LONG = tuple(range(MAX_PLAIN_TOKENS + 1))
#: An answer with a piece in the middle that has more than tokens, and one of many tokens.
PIECES = (
    decode_pb2.DecodeResponse(token_ids=[1]),
    decode_pb2.DecodeResponse(token_ids=[2, 3]),
    decode_pb2.DecodeResponse(token_ids=[4], usage=common_pb2.Usage(prompt_tokens=1)),
    decode_pb2.DecodeResponse(token_ids=[5]),
    decode_pb2.DecodeResponse(finish_reason=common_pb2.FINISH_REASON_LENGTH),
)


async def _generate(
    request: decode_pb2.DecodeRequest,
) -> AsyncGenerator[decode_pb2.DecodeResponse, None]:
    if request.request_id == "long":
        yield decode_pb2.DecodeResponse(token_ids=LONG)
    for piece in PIECES:
        yield piece


async def _messages(*names: str, reads_plain_tokens: bool) -> list[decode_pb2.SessionResponse]:
    async def requests() -> AsyncIterator[decode_pb2.SessionRequest]:
        for number, name in enumerate(names, start=1):
            yield decode_pb2.SessionRequest(
                answer_id=number,
                start=decode_pb2.DecodeRequest(request_id=name),
                reads_plain_tokens=reads_plain_tokens,
            )

    session = AnswerSession(_generate, over=asyncio.Event())
    async with aclosing(session.run(requests())) as messages:
        found = [message async for message in messages]
    return [message for message in found if message.events or message.plain_answer_ids]


async def test_tokens_alone_go_in_lists_and_never_past_what_came_before() -> None:
    [message] = await _messages("a", "long", reads_plain_tokens=True)
    assert list(message.plain_answer_ids) == [1, 1, 1]
    assert list(message.plain_token_ids) == [1, 2, 3]
    of_first = [event.piece for event in message.events if event.answer_id == 1]
    assert of_first == list(PIECES[2:])
    of_long = [event.piece for event in message.events if event.answer_id == 2]
    assert of_long == [decode_pb2.DecodeResponse(token_ids=LONG), *PIECES]


async def test_a_router_that_reads_no_lists_gets_events() -> None:
    [message] = await _messages("a", reads_plain_tokens=False)
    assert not message.plain_answer_ids
    assert [event.piece for event in message.events] == list(PIECES)
