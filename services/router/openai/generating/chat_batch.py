"""POST /v1/chat/completions/batch: several conversations, one answer to each."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pydantic
from fastapi import Request, Response  # noqa: TC002 read at run time by the framework
from pydantic import Field

from services.router.openai.errors import FieldError
from services.router.openai.generating.chat import ChatCompletions
from services.router.openai.http.arrival import arrived_s
from services.router.openai.http.body import field_error, parse_body, read_body
from services.router.openai.http.disconnect import unless_disconnected
from services.router.openai.reading.answer_defaults import with_defaults
from services.router.openai.replies.answers import stream_answers
from services.router.openai.replies.responses import add_usages, json_response
from services.router.openai.schema.chat import ChatBody, ChatMessage
from shared.aside import aside
from shared.generation.limits import check_answers

if TYPE_CHECKING:
    from services.router.openai.backend import Backend
    from services.router.openai.replies.chat_shapes import ChatCompletion

Conversation = Annotated[list[ChatMessage], Field(min_length=1)]


class ChatBatchBody(ChatBody):
    """A chat's fields, for every conversation in `messages`."""

    #: Conversations.
    messages: Annotated[list[Conversation], Field(min_length=1)]  # type: ignore[assignment]  # lists


class ChatBatch:
    """The endpoint POST /v1/chat/completions/batch. Choice i answers conversation i."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._chat = ChatCompletions(backend)

    async def create(self, request: Request) -> Response:
        """Return the next message of every conversation. An error of one is that of all."""
        arrival_s = arrived_s(request)
        backend = self._backend
        raw = await read_body(request, backend.limits)
        body = await parse_body(request, ChatBatchBody, raw, backend.unknown_fields)
        body = with_defaults(body, backend.answers)
        _check(body)
        check_answers(len(body.messages), 1, backend.limits, param="messages")
        chats = await aside(len(raw), lambda: _chats(body))
        replies = await unless_disconnected(
            request.receive, self._answer(request, chats, raw, arrival_s)
        )
        return json_response(_joined(replies))

    async def _answer(
        self, request: Request, chats: list[ChatBody], raw: bytes, arrival_s: float
    ) -> list[ChatCompletion]:
        """Return the replies; the failure of one cancels the others."""
        prepared = [await self._chat.prepare(request, chat, raw, arrival_s) for chat in chats]

        async def answer(i: int) -> ChatCompletion:
            reply = self._chat.reply(request, chats[i], prepared[i])
            async with aclosing(
                stream_answers(self._backend.generator, [prepared[i].generation])
            ) as parts:
                return await reply.whole(parts)

        tasks = [asyncio.create_task(answer(i)) for i in range(len(chats))]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _check(body: ChatBatchBody) -> None:
    if body.stream:
        raise FieldError("stream is not available for a batch", param="stream")
    if body.tools:
        raise FieldError("tools are not available for a batch", param="tools")
    for name in ("n", "best_of"):
        if getattr(body, name) not in (None, 1):
            raise FieldError(f"{name} must be 1 for a batch", param=name)
    if body.use_beam_search:
        message = "use_beam_search is not available for a batch"
        raise FieldError(message, param="use_beam_search")


def _chats(body: ChatBatchBody) -> list[ChatBody]:
    """Return the chat of every conversation."""
    fields: dict[str, Any] = body.model_dump(exclude={"messages"}, exclude_unset=True)
    return [_one(fields, conversation) for conversation in body.messages]


def _one(fields: dict[str, Any], conversation: Conversation) -> ChatBody:
    messages = [message.model_dump(exclude_unset=True) for message in conversation]
    try:
        return ChatBody.model_validate({**fields, "messages": messages})
    except pydantic.ValidationError as error:
        raise field_error(error) from error


def _joined(replies: list[ChatCompletion]) -> ChatCompletion:
    """Return one reply with the choice of every reply, numbered by conversation."""
    first = replies[0]
    choices = [
        msgspec.structs.replace(reply.choices[0], index=i) for i, reply in enumerate(replies)
    ]
    usage = add_usages([reply.usage for reply in replies])
    return msgspec.structs.replace(first, choices=choices, usage=usage, timings=None)
