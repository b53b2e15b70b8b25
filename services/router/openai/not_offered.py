"""Endpoints of other servers that do not exist here: refused with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.openai.errors import FieldError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

_CODE = "unsupported_endpoint"
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_AUDIO = "this server generates text: it takes and makes no audio"
_IMAGES = "this server generates text: it takes and makes no images"
_FILES = "this server keeps no files and runs no jobs: `baton run-batch` answers a file of requests"
_STATE = "this server keeps no state between requests: send the whole conversation"

_PUSHED = "weights come from a folder, in one step: POST /update_weights with its `path`"
_VERSION = "weights get their version when they come: POST /update_weights with `weight_version`"

_TRAINING = "this server trains nothing"

#: By path: the reason, also for all paths below it.
NOT_OFFERED: dict[str, str] = {
    "/v1/moderations": "this server generates text: it moderates none",
    "/v1/audio": _AUDIO,
    "/v1/images": _IMAGES,
    "/v1/videos": _IMAGES,
    "/v1/realtime": _AUDIO,
    "/v1/files": _FILES,
    "/v1/uploads": _FILES,
    "/v1/batches": _FILES,
    "/v1/messages/batches": _FILES,
    "/v1/fine_tuning": _TRAINING,
    "/v1/fine-tunes": _TRAINING,
    "/v1/evals": "this server runs no evaluations",
    "/v1/containers": "this server executes nothing",
    "/v1/vector_stores": _STATE,
    "/v1/conversations": _STATE,
    "/init_weight_transfer_engine": _PUSHED,
    "/start_weight_update": _PUSHED,
    "/finish_weight_update": _PUSHED,
    "/start_draft_weight_update": _PUSHED,
    "/shutdown_weight_transfer_engine": _PUSHED,
    "/get_world_size": f"no group of workers receives weights: {_PUSHED}",
    "/update_weight_version": _VERSION,
    "/weight_checker": "all workers' weights have one digest, which each update compares",
    "/release_kv_cache_memory": "KV goes with the weights: POST /sleep, then /wake_up",
    "/collective_rpc": "this server runs no code of its clients in its workers",
    "/reset_mm_cache": _IMAGES,
    "/reset_encoder_cache": _IMAGES,
    "/kv_event_sources": "workers publish their events themselves: see their --kv-events-endpoint",
    "/v1/messages/render": "messages are not rendered: render the chat that they are",
    "/scale_elastic_ep": "workers join and leave by themselves: start more, or stop some",
    "/v1/assistants": _STATE,
    "/v1/threads": _STATE,
}


def add_refusals(app: FastAPI) -> None:
    """Have `app` answer each of these paths with 400. The body is not read."""
    for path, reason in NOT_OFFERED.items():
        for route in (path, f"{path}/{{rest:path}}"):
            # Not one of the API's own routes, whose parameters take a millisecond to find out.
            app.add_route(route, _refusal(reason), methods=_METHODS, include_in_schema=False)


def _refusal(reason: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        raise FieldError(reason, param=None, code=_CODE)

    return refuse
