"""Endpoints that change all workers: vLLM's for sleep, training loops and profiles.

All need an operator. With `model` in the query they change the workers of that model alone. Answers
have vLLM's form where vLLM has the endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import pydantic
from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.fleet.fleet import TAGS
from services.router.fleet.pause import PauseMode
from services.router.openai.errors import FieldError
from services.router.openai.http.body import field_error, read_body
from services.router.openai.http.named_model import asked_model
from services.router.openai.operators.adapters import AdapterFleet
from services.router.openai.operators.roles import RoleFleet
from services.router.openai.replies.responses import json_response
from shared.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from fastapi import FastAPI

    from shared.generation.limits import RequestLimits

#: Time for running requests to finish.
TIMEOUT_S = 60.0
#: By path: whether it changes something, and so is a POST.
LIFECYCLE_PATHS: dict[str, bool] = {
    "/pause": True,
    "/resume": True,
    "/is_paused": False,
    "/sleep": True,
    "/wake_up": True,
    "/is_sleeping": False,
    "/update_weights": True,
    "/weight_info": False,
    "/start_profile": True,
    "/stop_profile": True,
}


#: Why weights are not taken from a request.
PUSHED = (
    "tensors are not pushed by NCCL or IPC: write a whole checkpoint to a folder, which may be in "
    "/dev/shm, and POST /update_weights with its `path`"
)
#: Fields of vLLM's requests with pushed weights.
_PUSHED_FIELDS = frozenset(
    {"names", "dtype_names", "shapes", "ipc_handles", "ipc_handles_pickled", "tensor_sizes"}
)


class Fleet(AdapterFleet, RoleFleet, Protocol):
    """All workers as one. Errors are BatonErrors; a change that fails leaves all as they were."""

    async def pause(self, mode: PauseMode, timeout_s: float) -> None:
        """Hold all requests; return when no worker computes."""
        ...

    async def resume(self) -> None:
        """Let all requests go on."""
        ...

    async def is_paused(self) -> bool:
        """Return whether all workers hold requests."""
        ...

    async def sleep(self, level: int, mode: PauseMode, timeout_s: float) -> None:
        """Have all workers give their memory back."""
        ...

    async def wake_up(self, tags: Collection[str]) -> bool:
        """Have all workers load what the tags name; return whether they serve."""
        ...

    async def is_sleeping(self) -> bool:
        """Return whether a worker sleeps."""
        ...

    async def update_weights(
        self, path: str, version: str | None, mode: PauseMode, timeout_s: float
    ) -> Mapping[str, str]:
        """Replace the weights of all workers, or of none; return lost workers' errors."""
        ...

    async def weight_versions(self) -> Mapping[str, str]:
        """Return the version of each worker's weights, by its name."""
        ...

    async def start_profile(self, prefix: str) -> None:
        """Have all workers record what they compute."""
        ...

    async def stop_profile(self) -> Mapping[str, str]:
        """End the records; return each worker's file, by its name."""
        ...


class UpdateBody(pydantic.BaseModel):
    """The body of /update_weights. vLLM wraps such fields into `update_info`."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    path: str = pydantic.Field(min_length=1, max_length=4096)
    weight_version: str | None = pydantic.Field(default=None, min_length=1, max_length=256)
    mode: Literal["abort", "wait"] = "wait"
    timeout_s: float = pydantic.Field(default=TIMEOUT_S, ge=0, le=3600)


class WrappedUpdateBody(pydantic.BaseModel):
    """The same in vLLM's form."""

    model_config = pydantic.ConfigDict(extra="forbid")

    update_info: UpdateBody


class ProfileBody(pydantic.BaseModel):
    """The body of /start_profile, which may be missing."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    profile_prefix: str = ""


class LifecycleEndpoints:
    """See each method's path in `LIFECYCLE_PATHS`."""

    def __init__(
        self,
        fleet_of: Callable[[str | None], Fleet],
        limits: RequestLimits,
        clear_cache: Callable[[str | None], Awaitable[bool]],
    ) -> None:
        """Change the workers of one model, or of all if it is None.

        `clear_cache`: drops the workers' cached prefixes, and returns whether all could.
        """
        self._fleet_of = fleet_of
        self._limits = limits
        self._clear_cache = clear_cache

    async def pause(self, request: Request) -> Response:
        """Hold new requests. `mode`: running ones end (abort), finish (wait) or stop (keep).

        Cached prefixes go if `clear_cache` says so; requests that only stopped keep theirs.
        """
        mode, clears = _mode(request), _flag(request, "clear_cache")
        await self._fleet(request).pause(mode, _timeout_s(request))
        if (
            clears
            and mode is not PauseMode.KEEP
            and not await self._clear_cache(asked_model(request))
        ):
            raise UnavailableError(
                "requests are paused, but the cache was not cleared: blocks are in use; "
                "POST /reset_prefix_cache to try again"
            )
        return json_response({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        """Let requests go on."""
        await self._fleet(request).resume()
        return json_response({"status": "resumed"})

    async def is_paused(self, request: Request) -> Response:
        """Return whether requests are held."""
        return json_response({"is_paused": await self._fleet(request).is_paused()})

    async def sleep(self, request: Request) -> Response:
        """Return the memory of weights and KV to the system. `level`: 1 or 2."""
        level = request.query_params.get("level", "1")
        if level not in ("1", "2"):
            message = f"level must be 1 or 2, not {level!r}: /pause holds requests without sleep"
            raise FieldError(message, param="level")
        await self._fleet(request).sleep(int(level), _mode(request), _timeout_s(request))
        return json_response({"status": "sleeping", "level": int(level)})

    async def wake_up(self, request: Request) -> Response:
        """Load what was given back: all, or what `tags` name: weights, kv_cache."""
        tags = request.query_params.getlist("tags")
        unknown = sorted(set(tags) - set(TAGS))
        if unknown:
            message = f"tags may be {' and '.join(TAGS)}, not {unknown[0]!r}"
            raise FieldError(message, param="tags")
        serves = await self._fleet(request).wake_up(tags or TAGS)
        return json_response({"status": "awake" if serves else "sleeping", "tags": tags or None})

    async def is_sleeping(self, request: Request) -> Response:
        """Return whether workers sleep."""
        return json_response({"is_sleeping": await self._fleet(request).is_sleeping()})

    async def update_weights(self, request: Request) -> Response:
        """Replace the weights by those of a folder, on all workers or on none."""
        body = await self._read_update(request)
        lost = await self._fleet(request).update_weights(
            body.path, body.weight_version, PauseMode(body.mode), body.timeout_s
        )
        versions = await self._fleet(request).weight_versions()
        return json_response(
            {"message": "Weights updated", "workers": dict(versions), "lost": dict(lost)}
        )

    async def weight_info(self, request: Request) -> Response:
        """Return the version of the weights: one, or null during a change; and each worker's."""
        versions = await self._fleet(request).weight_versions()
        names = set(versions.values())
        return json_response(
            {
                "weight_version": names.pop() if len(names) == 1 else None,
                "workers": dict(versions),
            }
        )

    async def start_profile(self, request: Request) -> Response:
        """Record what all workers compute, by PyTorch's profiler."""
        has_body = request.headers.get("content-length", "0") != "0"
        raw = await read_body(request, self._limits) if has_body else b"{}"
        try:
            body = ProfileBody.model_validate_json(raw)
        except pydantic.ValidationError as error:
            raise field_error(error) from error
        await self._fleet(request).start_profile(body.profile_prefix)
        return json_response({"status": "profiling"})

    async def stop_profile(self, request: Request) -> Response:
        """End the records; return their files."""
        return json_response(
            {"status": "stopped", "files": dict(await self._fleet(request).stop_profile())}
        )

    def _fleet(self, request: Request) -> Fleet:
        return self._fleet_of(asked_model(request))

    async def _read_update(self, request: Request) -> UpdateBody:
        raw = await read_body(request, self._limits)
        try:
            if b'"update_info"' in raw:
                return WrappedUpdateBody.model_validate_json(raw).update_info
            return UpdateBody.model_validate_json(raw)
        except pydantic.ValidationError as error:
            for each in error.errors(include_url=False, include_input=False):
                if each["loc"] and each["loc"][-1] in _PUSHED_FIELDS:
                    name = str(each["loc"][-1])
                    raise FieldError(f"{name} is unsupported: {PUSHED}", param=name) from error
            raise field_error(error) from error


def add_lifecycle(app: FastAPI, endpoints: LifecycleEndpoints) -> None:
    """Add all of them to `app`."""
    for path, changes in LIFECYCLE_PATHS.items():
        endpoint: Callable[..., Awaitable[Any]] = getattr(endpoints, path.removeprefix("/"))
        methods = ["POST"] if changes else ["GET"]
        app.add_api_route(path, endpoint, methods=methods, tags=["operations"])


def _mode(request: Request) -> PauseMode:
    found = request.query_params.get("mode", PauseMode.ABORT)
    try:
        return PauseMode(found)
    except ValueError as error:
        message = f"mode must be one of {', '.join(PauseMode)}, not {found!r}"
        raise FieldError(message, param="mode") from error


def _flag(request: Request, name: str) -> bool:
    found = request.query_params.get(name, "false").lower()
    if found not in ("true", "false", "1", "0"):
        raise FieldError(f"{name} must be true or false, not {found!r}", param=name)
    return found in ("true", "1")


def _timeout_s(request: Request) -> float:
    found = request.query_params.get("timeout_s", str(TIMEOUT_S))
    try:
        timeout_s = float(found)
    except ValueError:
        timeout_s = -1.0
    if not 0 <= timeout_s <= 3600:
        raise FieldError(f"timeout_s must be 0 to 3600, not {found!r}", param="timeout_s")
    return timeout_s
