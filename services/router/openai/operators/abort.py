"""POST /abort_requests: end running requests, those with given ids or all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import Request, Response  # noqa: TC002 read at run time by the framework
from pydantic import Field

from services.router.openai.errors import FieldError
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.http.unknown_fields import unknown_fields
from services.router.openai.replies.responses import json_response
from services.router.openai.schema.base import RequestObject

if TYPE_CHECKING:
    from services.router.openai.backend import Common
    from services.router.request.generation import Aborter

MAX_IDS = 4096

M = TypeVar("M", bound=RequestObject)


#: Each an `x-request-id`, or the `id` of an answer.
RequestIds = Annotated[list[str], Field(max_length=MAX_IDS)]


class AbortBody(RequestObject):
    """The requests to end; without ids all of them."""

    request_ids: RequestIds | None = None


class AbortNamedBody(RequestObject):
    """The requests to end."""

    request_ids: RequestIds


class AbortEndpoint:
    """Ends the caller's own requests; those of all if the caller is an operator."""

    def __init__(self, common: Common, aborter: Aborter) -> None:
        self._common = common
        self._aborter = aborter

    async def abort(self, request: Request) -> Response:
        """Return how many requests this router had under these ids. Unknown ones are no error.

        Without ids all requests end, unless the body has something else: a misspelled field must
        not end them.
        """
        body = await self._read(request, AbortBody)
        if not body.request_ids and (unknown := unknown_fields(body)):
            name = next(iter(unknown))
            message = f"{name} is unknown; name requests in request_ids, or send {{}} to end all"
            raise FieldError(message, param=name, code="unknown_parameter")
        return await self._end(request, body.request_ids or None)

    async def abort_named(self, request: Request) -> Response:
        """Return the same; ids are required, and an empty list ends nothing."""
        body = await self._read(request, AbortNamedBody)
        return await self._end(request, body.request_ids)

    async def _read(self, request: Request, schema: type[M]) -> M:
        raw = await read_body(request, self._common.limits)
        return await parse_body(request, schema, raw, self._common.unknown_fields)

    async def _end(self, request: Request, ids: list[str] | None) -> Response:
        caller = self._common.caller_of(request)
        tenant = None if caller.is_operator else caller.tenant
        names = None if ids is None else frozenset(ids)
        num = await self._aborter.abort(names, tenant=tenant)
        return json_response({"status": "aborted", "aborted": num})
