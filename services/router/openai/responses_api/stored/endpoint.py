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
from shared.errors import UnsupportedError

if TYPE_CHECKING:
    from services.router.openai.backend import Backend
    from services.router.openai.responses_api.stored.base import StoredResponse
    from services.router.openai.responses_api.stored.keeper import ResponseKeeper

#: Query parameters that ask for the events of a stream that has gone by.
_OF_STREAMS = ("stream", "starting_after")
_FALSE = ("", "0", "false")


class Deleted(msgspec.Struct):
    """The answer to a deletion."""

    id: str
    object: str = "response"
    deleted: bool = True


class StoredEndpoints:
    """The endpoints of one stored response. A tenant finds its own responses only."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def retrieve(self, request: Request, response_id: str) -> Response:
        """Return the response as it is now."""
        entry = await self._find(request, response_id)
        for name in _OF_STREAMS:
            if request.query_params.get(name, "").lower() not in _FALSE:
                message = f"{name} is not supported: events are not stored, only whole responses"
                raise UnsupportedError(message, param=name)
        return _as_json(entry)

    async def delete(self, request: Request, response_id: str) -> Response:
        """Remove the response; one that is being made is cancelled first."""
        keeper, tenant = self._keeper(), self._tenant(request)
        await keeper.runs.cancel(tenant, response_id)
        if not await keeper.store.delete(tenant, response_id):
            raise _not_found(response_id)
        return json_response(Deleted(response_id))

    async def cancel(self, request: Request, response_id: str) -> Response:
        """Cancel a response in the background; return one that has ended as it is."""
        keeper, tenant = self._keeper(), self._tenant(request)
        await keeper.runs.cancel(tenant, response_id)
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
        entry = await self._keeper().store.get(self._tenant(request), response_id)
        if entry is None:
            raise _not_found(response_id)
        return entry

    def _keeper(self) -> ResponseKeeper:
        keeper = self._backend.responses
        if keeper is None:
            message = f"responses are not stored here, so none can be requested: {NEEDS_STORE}"
            raise HTTPException(HTTPStatus.NOT_FOUND, message)
        return keeper

    def _tenant(self, request: Request) -> str:
        return self._backend.caller_of(request).tenant.name


def _as_json(entry: StoredResponse) -> Response:
    return Response(entry.response, media_type="application/json")


def _not_found(response_id: str) -> HTTPException:
    message = f"there is no stored response {response_id[:128]!r}"
    return HTTPException(HTTPStatus.NOT_FOUND, message)
