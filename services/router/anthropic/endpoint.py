"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.anthropic.output import TokenCount
from services.router.anthropic.reply import MessageReply
from services.router.anthropic.schema import REFUSED, CountTokensBody, MessagesBody
from services.router.anthropic.translate import NAMES, chat_fields
from services.router.openai.errors import FieldError
from services.router.openai.generating.chat import ChatCompletions
from services.router.openai.generating.endpoint import answer
from services.router.openai.http.arrival import arrived_s
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.reading.as_chat import chat_body, params_named, refuse_fields
from services.router.openai.replies.answers import stream_answers
from services.router.openai.replies.client_tap import ClientTap
from services.router.openai.replies.responses import json_response
from shared.aside import aside

if TYPE_CHECKING:
    from typing import TypeVar

    from services.router.anthropic.schema import PromptFields
    from services.router.openai.backend import Backend
    from services.router.openai.generating.chat import PreparedChat

    B = TypeVar("B", bound=PromptFields)

#: Versions of Anthropic's API. The newer one has fewer request fields (no sampling fields, which
#: are accepted here) and the same answers. Versions before these two had other events.
VERSIONS = ("2023-06-01", "2026-10-21")
_VERSION_HEADER = "anthropic-version"


class Messages:
    """The endpoints of Anthropic's Messages API."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._chat = ChatCompletions(backend)

    async def create(self, request: Request) -> Response:
        """Return the next message of a conversation, whole or as a stream."""
        body, chat = await self._prepare(request, MessagesBody)
        reply = MessageReply(
            chat.new_reader(),
            request_id=request.state.request_id,
            model=chat.generation.model,
            num_prompt_tokens=len(chat.generation.prompt_token_ids),
        )
        tap = ClientTap()
        parts = stream_answers(self._backend.generator, [chat.generation], tap.outlet())
        response = await answer(
            request, parts, reply, stream=bool(body.stream), edge=reply, tap=tap
        )
        return _with_id(response, request)

    async def count(self, request: Request) -> Response:
        """Return the number of prompt tokens of a conversation."""
        _, chat = await self._prepare(request, CountTokensBody)
        count = TokenCount(len(chat.generation.prompt_token_ids))
        return _with_id(json_response(count), request)

    async def _prepare(self, request: Request, schema: type[B]) -> tuple[B, PreparedChat]:
        arrival_s = arrived_s(request)
        version = request.headers.get(_VERSION_HEADER)
        if version is not None and version not in VERSIONS:
            message = f"{_VERSION_HEADER} must be {' or '.join(VERSIONS)}, not {version[:64]}"
            raise FieldError(message, param=_VERSION_HEADER)
        raw = await read_body(request, self._backend.limits)
        body = await parse_body(request, schema, raw, self._backend.unknown_fields)
        refuse_fields(body, REFUSED)
        with params_named(NAMES):
            bounds = self._backend.formats.reasoning is not None
            fields = await aside(
                len(raw), lambda: chat_body(chat_fields(body, bounds_thinking=bounds))
            )
            return body, await self._chat.prepare(request, fields, raw, arrival_s)


def _with_id(response: Response, request: Request) -> Response:
    """Return the response with the request's id under the name that Anthropic's clients read."""
    response.headers["request-id"] = request.state.request_id
    return response
