"""POST /v1/responses, and the number of tokens of its body."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.openai.errors import FieldError
from services.router.openai.generating.chat import ChatCompletions
from services.router.openai.generating.endpoint import answer
from services.router.openai.http.arrival import arrived_s
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.reading.as_chat import chat_body, params_named, refuse_fields
from services.router.openai.replies.answers import stream_answers
from services.router.openai.replies.client_tap import ClientTap
from services.router.openai.replies.responses import json_response
from services.router.openai.responses_api.reply import ResponseReply
from services.router.openai.responses_api.schema import LOGPROBS, REFUSED, ResponsesBody
from services.router.openai.responses_api.stored.conversation import (
    check_state,
    items_json,
    items_until,
)
from services.router.openai.responses_api.stored.follow import followed
from services.router.openai.responses_api.stored.record import Record, new_id, recorded
from services.router.openai.responses_api.translate import NAMES, chat_fields
from shared.aside import aside
from shared.errors import UnsupportedError

if TYPE_CHECKING:
    from services.router.openai.backend import Backend
    from services.router.openai.generating.chat import PreparedChat
    from services.router.openai.responses_api.stored.keeper import ResponseKeeper


class InputTokens(msgspec.Struct):
    """Number of prompt tokens of an input."""

    input_tokens: int
    object: str = "response.input_tokens"


class Responses:
    """The endpoints that read a body of the Responses API."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._chat = ChatCompletions(backend)

    async def create(self, request: Request) -> Response:
        """Return the next items of a conversation, whole or as a stream."""
        body, chat = await self._prepare(request)
        keeper = None if body.store is False else self._backend.responses
        reply = ResponseReply(
            body,
            chat.new_reader(),
            request_id=request.state.request_id,
            model=chat.generation.model,
            num_prompt_tokens=len(chat.generation.prompt_token_ids),
            stored_id=None if keeper is None else new_id(),
        )
        # An answer that is stored is recorded from all of its pieces.
        tap = ClientTap() if keeper is None else None
        outlet = None if tap is None else tap.outlet()
        parts = stream_answers(self._backend.generator, [chat.generation], outlet)
        if keeper is not None:
            record = self._record(request, body, keeper)
            if body.background:
                streams = bool(body.stream)
                response = await keeper.runs.start(parts, reply, record, streams=streams)
                if not streams:
                    return json_response(response)
                return await followed(request, keeper, (record.tenant, response.id), after=-1)
            # Before there is an answer that could not be stored.
            await keeper.store.check()
            parts = recorded(parts, reply, record)
        return await answer(request, parts, reply, stream=bool(body.stream), edge=reply, tap=tap)

    async def count(self, request: Request) -> Response:
        """Return the number of prompt tokens of a body."""
        _, chat = await self._prepare(request)
        return json_response(InputTokens(len(chat.generation.prompt_token_ids)))

    async def _prepare(self, request: Request) -> tuple[ResponsesBody, PreparedChat]:
        arrival_s = arrived_s(request)
        raw = await read_body(request, self._backend.limits)
        body = await parse_body(request, ResponsesBody, raw, self._backend.unknown_fields)
        refuse_fields(body, REFUSED)
        _refuse_options(body)
        check_state(body, self._backend.responses)
        if self._backend.responses is not None and body.previous_response_id:
            keeper, tenant = self._backend.responses, self._tenant(request)
            before = await items_until(keeper, tenant, body.previous_response_id)
            body = body.model_copy(update={"input": [*before, *body.input]})
            # Long conversations are tokenised in a thread, like long bodies.
            raw += items_json(before)
        with params_named(NAMES):
            fields = await aside(len(raw), lambda: chat_body(chat_fields(body)))
            return body, await self._chat.prepare(request, fields, raw, arrival_s)

    def _record(self, request: Request, body: ResponsesBody, keeper: ResponseKeeper) -> Record:
        return Record(
            keeper.store,
            keeper.writes,
            tenant=self._tenant(request),
            items=items_json(body.input),
            background=bool(body.background),
        )

    def _tenant(self, request: Request) -> str:
        return self._backend.caller_of(request).tenant.name


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
