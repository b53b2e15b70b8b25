"""`baton prefer`: change the role for which routers prefer a worker."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request

from cli.errors import CommandError
from cli.security.access import open_http

if TYPE_CHECKING:
    from cli.security.access import Secure

KEY_VARIABLE = "BATON_API_KEY"
PATH = "/v1/workers/prefer"
#: The order waits for a step of the worker's engine, and for its heartbeat.
TIMEOUT_S = 30.0


def run_prefer(url: str, worker: str, role: str, *, secure: Secure | None = None) -> str:
    """Have a worker prefer a role; return what it answered, in words.

    Raises:
        CommandError: the router cannot be reached, or refused.
    """
    headers = {"content-type": "application/json"}
    if key := os.environ.get(KEY_VARIABLE):
        headers["authorization"] = f"Bearer {key}"
    body = json.dumps({"worker": worker, "role": role}).encode()
    try:
        asked = Request(f"{url.rstrip('/')}{PATH}", body, headers, method="POST")
        with open_http(secure).open(asked, timeout=TIMEOUT_S) as answer:
            found: dict[str, Any] = json.loads(answer.read())
    except HTTPError as error:
        with error:
            raise _refusal(error) from error
    except (OSError, ValueError) as error:
        message = f"cannot ask the router at {url}: {error}"
        raise CommandError(message, advice="--url says where its HTTP is") from error
    words = f"{found['worker']} prefers {found['role']}, from step {found['from_step']} on"
    return "; ".join([words, *found["limits"]])


def _refusal(error: HTTPError) -> CommandError:
    """Return the router's error; of keys it says nothing but the status."""
    advice = ""
    if error.code in (401, 403):
        advice = f"put an operator's key into {KEY_VARIABLE}"
    try:
        message = str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"status {error.code}"
    return CommandError(f"the router refuses: {message}", advice=advice)
