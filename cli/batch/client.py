"""Sends the requests of a batch; repeats them if the server is busy or unavailable."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx

from cli.batch.json_text import json_bytes
from cli.errors import CommandError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from cli.batch.requests import Request

_JSON = {"content-type": "application/json"}
#: Statuses for which a retry may help. Any other status is the answer.
RETRIED = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
FIRST_DELAY_S = 0.25
LONGEST_DELAY_S = 30.0


class BatchClient:
    """A connection pool with retries. Use it as an asynchronous context manager."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        verify: ssl.SSLContext | bool,
        concurrency: int,
        patience_s: float,
        timeout_s: float,
        require_server: Callable[[], None],
    ) -> None:
        """Make a client.

        The batch fails when no request was answered for `patience_s`, after any retries.

        `timeout_s` is the longest time for one answer. `require_server` raises CommandError when
        the server cannot be running any more.
        """
        self._patience_s = patience_s
        self._require_server = require_server
        self._answered_s = time.monotonic()
        self.num_retries = 0
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/").removesuffix("/v1"),
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            verify=verify,
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            limits=httpx.Limits(max_connections=concurrency),
            trust_env=False,
        )

    async def __aenter__(self) -> BatchClient:
        await self._http.__aenter__()
        self._answered_s = time.monotonic()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._http.__aexit__(*error)

    async def send(self, request: Request) -> dict[str, Any]:
        """Return the line of the output for `request`.

        Raises:
            CommandError: no request was answered for too long, or the peer is no HTTP server.
        """
        num_tries, body = 0, json_bytes(request.body)
        while True:
            reason, delay_s = "", FIRST_DELAY_S * 2**num_tries
            try:
                response = await self._http.post(request.url, content=body, headers=_JSON)
                if response.status_code not in RETRIED:
                    self._answered_s = time.monotonic()
                    return _line(request, response)
                reason = f"the server answered {response.status_code}: {response.text[:200]}"
                delay_s = _retry_after_s(response) or delay_s
            except httpx.TransportError as error:
                self._require_http(error)
                self._require_server()
                reason = f"no answer: {str(error) or type(error).__name__}"
            num_tries += 1
            self.num_retries += 1
            await self._wait(request, min(delay_s, LONGEST_DELAY_S), reason)

    def _require_http(self, error: httpx.TransportError) -> None:
        """Raise CommandError if the peer is no HTTP server; retry after other failures."""
        # h11's message for bytes that cannot be an answer's first line.
        if isinstance(error, httpx.RemoteProtocolError) and str(error).startswith("illegal"):
            raise CommandError(
                f"{self._http.base_url} does not speak HTTP ({error})",
                advice="--url is the address of the HTTP API, not of the gRPC services",
            ) from error

    async def _wait(self, request: Request, delay_s: float, reason: str) -> None:
        silent_s = time.monotonic() - self._answered_s
        if silent_s > self._patience_s:
            raise CommandError(
                f"nothing was answered for {silent_s:.0f} s; {request.custom_id}: {reason}",
                advice="the same command goes on where this one ended",
            )
        # Not all requests at the same moment again.
        await asyncio.sleep(delay_s * random.uniform(1.0, 1.25))


def _line(request: Request, response: httpx.Response) -> dict[str, Any]:
    error = None
    try:
        body = response.json()
    except ValueError:
        body, error = None, {"code": "no_json", "message": response.text[:1000]}
    return {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": request.custom_id,
        "response": {
            "status_code": response.status_code,
            "request_id": response.headers.get("x-request-id", ""),
            "body": body,
        },
        "error": error,
    }


def _retry_after_s(response: httpx.Response) -> float | None:
    """Return the Retry-After header in seconds; None if it is missing or a date."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.replace(".", "", 1).isdecimal() else None
