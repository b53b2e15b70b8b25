"""POST /v1/responses, and the refusal of requests for stored responses."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
from fastapi import Request, Response  # noqa: TC002 read at run time by the framework
from starlette.exceptions import HTTPException

from services.router.openai.endpoint import answer
from services.router.openai.errors import FieldError
from services.router.openai.reading.as_chat import chat_body, params_named, refuse_fields
from services.router.openai.reading.body import parse_body, read_body
from services.router.openai.replies.answers import stream_answers
from services.router.openai.replies.responses import json_response
from services.router.openai.responses_api.reply import ResponseReply
from services.router.openai.responses_api.schema import LOGPROBS, REFUSED, ResponsesBody
from services.router.openai.responses_api.translate import NAMES, chat_fields
from shared.errors import UnsupportedError

if TYPE_CHECKING:
    from services.router.openai.backend import Backend
    from services.router.openai.chat import ChatCompletions, PreparedChat


class InputTokens(msgspec.Struct):
    """Number of prompt tokens of an input."""

    input_tokens: int
    object: str = "response.input_tokens"


class Responses:
    """The endpoints of the Responses API. Conversations are kept by the client."""

    def __init__(self, backend: Backend, chat: ChatCompletions) -> None:
        self._backend = backend
        self._chat = chat

    async def create(self, request: Request) -> Response:
        """Return the next items of a conversation, whole or as a stream."""
        body, chat = await self._prepare(request)
        reply = ResponseReply(
            body,
            chat.new_reader(),
            request_id=request.state.request_id,
            model=self._backend.models.resolve(body.model),
            num_prompt_tokens=len(chat.generation.prompt_token_ids),
        )
        parts = stream_answers(self._backend.generator, [chat.generation])
        return await answer(request, parts, reply, stream=bool(body.stream), edge=reply)

    async def count(self, request: Request) -> Response:
        """Return the number of prompt tokens of a body."""
        _, chat = await self._prepare(request)
        return json_response(InputTokens(len(chat.generation.prompt_token_ids)))

    async def stored(self) -> Response:
        """Refuse the request: no responses are stored."""
        message = "responses are not stored here, so none can be requested"
        raise HTTPException(HTTPStatus.NOT_FOUND, message)

    async def _prepare(self, request: Request) -> tuple[ResponsesBody, PreparedChat]:
        arrival_s = time.monotonic()
        raw = await read_body(request, self._backend.limits)
        body = parse_body(request, ResponsesBody, raw, self._backend.unknown_fields)
        refuse_fields(body, REFUSED)
        _refuse_options(body)
        with params_named(NAMES):
            fields = chat_body(chat_fields(body))
            return body, await self._chat.prepare(request, fields, raw, arrival_s)


def _refuse_options(body: ResponsesBody) -> None:
    """Refuse unsupported values of fields that support some values.

    Raises:
        UnsupportedError: a field has a value that is not offered.
    """
    if body.truncation == "auto":
        message = "truncation of auto is not supported: nothing is left out of a conversation"
        raise UnsupportedError(message, param="truncation")
    if body.top_logprobs and not body.wants_logprobs:
        raise FieldError(f"top_logprobs needs include of {LOGPROBS}", param="top_logprobs")
