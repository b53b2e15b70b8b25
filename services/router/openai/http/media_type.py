"""The media type of a request's body.

A browser sends JSON to another site only after a preflight request. So pages of other sites cannot
make a browser send requests to a server that accepts nothing but JSON.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from starlette.datastructures import Headers

_JSON = re.compile(r"application/(?:[\w.!#$&^-]+\+)?json", re.ASCII)
_MAX_SHOWN = 64


def check_is_json(headers: Headers) -> None:
    """Refuse a body that is not plain JSON.

    Raises:
        HTTPException: 415: the headers name another type or an encoding, or no type.
    """
    given = headers.get("content-type", "")
    if _JSON.fullmatch(given.partition(";")[0].strip().lower()) is None:
        raise _unsupported("content-type must be application/json", given)
    coding = headers.get("content-encoding", "")
    if coding.strip().lower() not in ("", "identity"):
        raise _unsupported("content-encoding must be identity", coding)


def _unsupported(rule: str, given: str) -> HTTPException:
    shown = repr(given[:_MAX_SHOWN]) if given else "absent"
    return HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"{rule}, not {shown}")
