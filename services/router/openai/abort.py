"""POST /abort_requests: end running requests by their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Request, Response  # noqa: TC002 read at run time by the framework
from pydantic import Field

from services.router.openai.reading.body import parse_body, read_body
from services.router.openai.replies.responses import json_response
from services.router.openai.schema.base import RequestObject

if TYPE_CHECKING:
    from services.router.openai.backend import Common
    from services.router.request.generation import Aborter

MAX_IDS = 4096


class AbortBody(RequestObject):
    """The requests to end."""

    #: Each an `x-request-id`, or the `id` of an answer.
    request_ids: Annotated[list[str], Field(max_length=MAX_IDS)]


class AbortEndpoint:
    """Ends the caller's own requests; those of all if the caller is an operator."""

    def __init__(self, common: Common, aborter: Aborter) -> None:
        self._common = common
        self._aborter = aborter

    async def abort(self, request: Request) -> Response:
        """Return how many requests this router had under these ids. Unknown ones are no error."""
        common = self._common
        raw = await read_body(request, common.limits)
        body = parse_body(request, AbortBody, raw, common.unknown_fields)
        caller = common.caller_of(request)
        tenant = None if caller.is_operator else caller.tenant
        num = self._aborter.abort(frozenset(body.request_ids), tenant=tenant)
        return json_response({"status": "aborted", "aborted": num})
