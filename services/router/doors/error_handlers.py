"""Responses for exceptions, in the format of the API that the request's path belongs to."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from services.router.anthropic import errors as anthropic
from services.router.openai.errors import error_headers, error_json, error_status
from shared.errors import BatonError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

logger = structlog.get_logger(__name__)


def add_error_handlers(app: FastAPI) -> None:
    """Have `app` answer every exception in the format of its API."""
    for kind in (BatonError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _answer_error)


def error_response(error: Exception, *, path: str, request_id: str) -> Response:
    """Return the response to a request for `path` that ended with this error."""
    headers = error_headers(error)
    if anthropic.is_anthropic(path):
        # Header with the request's id for Anthropic's clients.
        headers["request-id"] = request_id
        body = anthropic.error_json(error, request_id=request_id)
    else:
        body = error_json(error, request_id=request_id, path=path)
    return Response(
        body,
        status_code=error_status(error),
        headers=headers,
        media_type="application/json",
    )


async def _answer_error(request: Request, error: Exception) -> Response:
    request_id: str = request.state.request_id
    if isinstance(error, HTTPException):
        # Most come from the framework: an unknown route or method.
        detail = f"{error.detail}: {request.method} {request.url.path[:200]}"
        error = HTTPException(error.status_code, detail, error.headers)
    status = error_status(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        known = isinstance(error, BatonError)
        # The framework raises unexpected exceptions again after this; the server logs their
        # traceback.
        logger.warning("request_failed", status=status, error=repr(error), known=known)
    response = error_response(error, path=request.url.path, request_id=request_id)
    # The framework answers unexpected exceptions outside all middleware.
    response.headers["x-request-id"] = request_id
    return response
