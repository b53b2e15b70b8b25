"""GET and DELETE /v1/responses/{id}, and POST /v1/responses/{id}/cancel."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
from fastapi import Request, Response
from starlette.exceptions import HTTPException

from services.router.openai.errors import FieldError
from services.router.openai.replies.responses import json_response
from services.router.openai.responses_api.stored.conversation import NEEDS_STORE
from services.router.openai.responses_api.stored.follow import followed
from shared.errors import UnsupportedError

if TYPE_CHECKING:
    from services.router.openai.backend import Common
    from services.router.openai.responses_api.stored.base import StoredResponse
    from services.router.openai.responses_api.stored.keeper import ResponseKeeper

_FLAGS = {"": False, "0": False, "false": False, "1": True, "true": True}


#: Numbers of events fit into the ids of Redis's streams.
_MAX_DIGITS = 18


class Deleted(msgspec.Struct):
    """The answer to a deletion."""

    id: str
    object: str = "response"
    deleted: bool = True


class StoredEndpoints:
    """The endpoints of one stored response. A tenant finds its own responses only."""

    def __init__(self, common: Common) -> None:
        self._common = common

    async def retrieve(self, request: Request, response_id: str) -> Response:
        """Return the response as it is now, or the stream of its events."""
        after = _starting_after(request)
        entry = await self._find(request, response_id)
        if after is None:
            return _as_json(entry)
        return await followed(request, self._keeper(), entry.key, after=after)

    async def delete(self, request: Request, response_id: str) -> Response:
        """Remove the response; one that is being made is cancelled first."""
        if not await self._keeper().delete(self._tenant(request), response_id):
            raise _not_found(response_id)
        return json_response(Deleted(response_id))

    async def cancel(self, request: Request, response_id: str) -> Response:
        """Cancel a response in the background; return one that has ended as it is."""
        await self._keeper().cancel(self._tenant(request), response_id)
        entry = await self._find(request, response_id)
        if not entry.background:
            message = f"response {response_id} was not made in the background: it has ended"
            raise FieldError(message, param="response_id")
        return _as_json(entry)

    async def input_items(self, request: Request, response_id: str) -> Response:
        """Refuse the request: the items of a conversation are not listed."""
        await self._find(request, response_id)
        message = "the items of a conversation are stored, and not listed: the client has sent them"
        raise UnsupportedError(message, param=None)

    async def _find(self, request: Request, response_id: str) -> StoredResponse:
        entry = await self._keeper().find(self._tenant(request), response_id)
        if entry is None:
            raise _not_found(response_id)
        return entry

    def _keeper(self) -> ResponseKeeper:
        keeper = self._common.responses
        if keeper is None:
            message = f"responses are not stored here, so none can be requested: {NEEDS_STORE}"
            raise HTTPException(HTTPStatus.NOT_FOUND, message)
        return keeper

    def _tenant(self, request: Request) -> str:
        return self._common.caller_of(request).tenant.name


def _starting_after(request: Request) -> int | None:
    """Return the number of the last event that the client of a stream has; None: no stream."""
    stream = request.query_params.get("stream", "").lower()
    after = request.query_params.get("starting_after", "")
    if stream not in _FLAGS:
        raise FieldError("stream must be true or false", param="stream", code="invalid_type")
    if after and not (after.isascii() and after.isdigit() and len(after) <= _MAX_DIGITS):
        message = "starting_after must be the sequence_number of an event"
        raise FieldError(message, param="starting_after", code="invalid_type")
    if not _FLAGS[stream]:
        if after:
            raise FieldError("starting_after needs stream of true", param="starting_after")
        return None
    return int(after) if after else -1


def _as_json(entry: StoredResponse) -> Response:
    return Response(entry.response, media_type="application/json")


def _not_found(response_id: str) -> HTTPException:
    message = f"there is no stored response {response_id[:128]!r}"
    return HTTPException(HTTPStatus.NOT_FOUND, message)
