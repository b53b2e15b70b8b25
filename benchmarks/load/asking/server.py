"""The server as a whole: is it there, and what does it serve."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from benchmarks.load.asking.client import describe_refusal
from benchmarks.load.asking.lanes import LaneTransport
from shared.errors import AuthenticationError, ConfigError, UnavailableError

if TYPE_CHECKING:
    from benchmarks.load.settings import ServerSettings

RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Its name in requests, and the folder it was loaded from if the server says."""

    name: str
    root: Path | None = None


def open_http(settings: ServerSettings) -> httpx.AsyncClient:
    """A client without limits of its own: the number of requests is the runner's business."""
    base_url = settings.base_url or f"http://{_host(settings.host)}:{settings.port}"
    headers = dict(split_pair("--header", pair) for pair in settings.header)
    if settings.api_key:
        headers = {"authorization": f"Bearer {settings.api_key}"} | headers
    return httpx.AsyncClient(
        base_url=base_url.rstrip("/"),
        headers=headers,
        # Also without the environment's proxies, which would be measured along with the server.
        transport=LaneTransport(),
        timeout=None,
    )


def split_pair(flag: str, pair: str) -> tuple[str, str]:
    """Split KEY=VALUE."""
    key, equals, value = pair.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{flag}: {pair!r} is not KEY=VALUE")
    return key.strip(), value.strip()


async def find_model(
    http: httpx.AsyncClient, settings: ServerSettings, *, timeout_s: float
) -> ServedModel:
    """Wait until the server lists its models, at least one try, and choose the first.

    Raises:
        UnavailableError: it cannot be reached, or lists nothing.
        AuthenticationError: it wants another key.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            response = await http.get("/v1/models", timeout=max(timeout_s, 10.0))
            if response.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                return _choose_model(response, settings)
            reason = describe_refusal(response.status_code, response.content)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
        if time.monotonic() + RETRY_S > deadline:
            raise UnavailableError(
                f"no server is ready at {http.base_url} ({reason}).\n"
                "Start one (`baton up`), or say where it is with --base-url or --host and --port."
                " --ready-check-timeout-sec 300 waits for one that is still loading."
            )
        await asyncio.sleep(RETRY_S)


def _choose_model(response: httpx.Response, settings: ServerSettings) -> ServedModel:
    if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise AuthenticationError("the server refuses the key: pass --api-key or OPENAI_API_KEY")
    asked = settings.served_model_name or settings.model
    models = _listed(response)
    root = Path(settings.model) if settings.model else None
    if asked is None and not models:
        raise UnavailableError(
            f"{response.url} lists no model "
            f"({describe_refusal(response.status_code, response.content)}); pass --model"
        )
    if asked is None:
        first = models[0]
        return ServedModel(str(first["id"]), Path(first["root"]) if first.get("root") else None)
    for model in models:
        if model["id"] == asked and model.get("root") and root is not None and not root.exists():
            root = Path(model["root"])
    return ServedModel(asked, root)


def _listed(response: httpx.Response) -> list[dict[str, Any]]:
    if response.status_code != HTTPStatus.OK:
        return []
    try:
        data = response.json()["data"]
    except (ValueError, KeyError, TypeError):
        return []
    return [model for model in data if isinstance(model, dict) and "id" in model]


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
