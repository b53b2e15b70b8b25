"""Read a request's body up to a limit and check it against a schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pydantic

from services.router.openai.errors import FieldError
from services.router.openai.http.media_type import check_is_json
from services.router.openai.http.request_id import adopt_id
from services.router.openai.schema.base import RequestObject
from services.router.openai.schema.kinds import UNSUPPORTED
from services.router.openai.schema.unsupported import refuse_unsupported
from shared.aside import aside
from shared.errors import PayloadTooLargeError, UnsupportedError
from shared.text.json_depth import is_too_deep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import ErrorDetails
    from starlette.requests import Request

    from services.router.openai.http.unknown_fields import UnknownFields
    from shared.generation.limits import RequestLimits

M = TypeVar("M", bound=RequestObject)

#: Bodies of so many bytes are checked in less than a millisecond.
INLINE_BYTES = 2**15


async def read_body(request: Request, limits: RequestLimits) -> bytes:
    """Return the whole body. It is read once for a request, and checked once.

    Raises:
        HTTPException: 415: it is not plain JSON, by its headers.
        PayloadTooLargeError: it is too long. An announced length is checked before the body is
            read; without one, reading stops at the limit.
        FieldError: it is JSON that is nested too deeply.
    """
    kept: bytes | None = getattr(request.state, "body", None)
    if kept is not None:
        return kept
    check_is_json(request.headers)
    max_bytes = limits.max_body_bytes
    announced = request.headers.get("content-length", "")
    # Numbers with more digits than any limit are too large, and int() accepts some thousands only.
    if announced.isdecimal() and (len(announced) > 19 or int(announced) > max_bytes):
        raise _too_large(max_bytes)
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > max_bytes:
            raise _too_large(max_bytes)
    body, depth = bytes(chunks), limits.max_json_depth
    if await aside(len(body), lambda: is_too_deep(body, depth), inline=INLINE_BYTES):
        message = f"the body must not be nested more than {depth} levels deep"
        raise FieldError(message, param=None, code="invalid_json")
    request.state.body = body
    return body


async def parse_body(request: Request, schema: type[M], body: bytes, unknown: UnknownFields) -> M:
    """Return the `body` of a request as a `schema`. The body may set the request's id.

    Fields that are known and not offered are refused; `unknown` decides on the others.

    Raises:
        FieldError: not JSON, or a field is missing, wrong or unknown; the first one is named.
        UnsupportedError: a field asks for what is not offered.
    """
    parsed = await aside(
        len(body), lambda: _parsed(request, schema, body, unknown), inline=INLINE_BYTES
    )
    adopt_id(request, getattr(parsed, "request_id", None))
    return parsed


def _parsed(request: Request, schema: type[M], body: bytes, unknown: UnknownFields) -> M:
    try:
        parsed = schema.model_validate_json(body)
    except pydantic.ValidationError as error:
        raise field_error(error) from error
    refuse_unsupported(parsed)
    unknown.check(request, parsed)
    return parsed


def field_error(error: pydantic.ValidationError) -> FieldError | UnsupportedError:
    """Return the first problem that a schema found, as an error for the client."""
    return _field_error(error.errors(include_url=False, include_context=False)[0])


def param_path(loc: Sequence[int | str]) -> str | None:
    """Return the path of a field in OpenAI's notation: messages[0].role."""
    path = ""
    for step in loc:
        if step == "[key]" or str(step).startswith("("):
            # Pydantic's marker of a key, and the tags of schema_kinds.py.
            continue
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")[:256] or None


def _field_error(detail: ErrorDetails) -> FieldError | UnsupportedError:
    kind, message = detail["type"], detail["msg"]
    param = param_path(detail["loc"])
    if kind == "json_invalid":
        return FieldError(f"the body is not valid JSON: {message}", param=None, code="invalid_json")
    if param is None:
        return FieldError("the body must be a JSON object", param=None, code="invalid_type")
    if kind == "missing":
        code = "missing_required_parameter"
        return FieldError(f"missing required parameter: {param}", param=param, code=code)
    if kind == UNSUPPORTED:
        return UnsupportedError(f"{param}: {message}", param=param)
    code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    return FieldError(f"{param}: {message[:1].lower()}{message[1:]}", param=param, code=code)


def _too_large(max_bytes: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the request's body is larger than {max_bytes} bytes")
