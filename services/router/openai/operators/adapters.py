"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter: vLLM's, on all workers. For operators.

Where there are several models, `model` in the query says whose workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import pydantic
from fastapi import Request, Response  # noqa: TC002 read at run time by the framework
from starlette.responses import PlainTextResponse

from services.router.openai.errors import FieldError
from services.router.openai.http.body import field_error, read_body
from services.router.openai.http.named_model import asked_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from shared.generation.limits import RequestLimits
    from shared.request.adapter_ref import AdapterRef

B = TypeVar("B", bound=pydantic.BaseModel)

LOAD_PATH = "/v1/load_lora_adapter"
UNLOAD_PATH = "/v1/unload_lora_adapter"
ADAPTER_PATHS = (LOAD_PATH, UNLOAD_PATH)


class AdapterFleet(Protocol):
    """All workers as one. Errors are BatonErrors; an order that fails leaves all as they were."""

    async def load_adapter(self, name: str, path: str, *, replaces: bool) -> AdapterRef:
        """Have all workers that serve adapters load one.

        `replaces`: the name may stand for another adapter, which requests do not get any more.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Take the name away. Running requests keep the adapter until they end."""
        ...


class LoadAdapterBody(pydantic.BaseModel):
    """The body of /v1/load_lora_adapter."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    lora_name: str = ""
    #: Its folder, below the workers' --lora-dir; relative: from there.
    lora_path: str = ""
    #: Whether the name may have been given to another adapter, which it no longer means then.
    load_inplace: bool = False


class UnloadAdapterBody(pydantic.BaseModel):
    """The body of /v1/unload_lora_adapter."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    lora_name: str = ""
    #: Ignored: names decide.
    lora_int_id: int | None = None


class AdapterEndpoints:
    """The two endpoints. Their answers are vLLM's lines of text."""

    def __init__(
        self, fleet_of: Callable[[str | None], AdapterFleet], limits: RequestLimits
    ) -> None:
        """`fleet_of` returns the workers of a model, or of all if it is None."""
        self._fleet_of = fleet_of
        self._limits = limits

    async def load(self, request: Request) -> Response:
        """Load an adapter on all workers, or on none; requests ask for it by its name."""
        body = await self._read(request, LoadAdapterBody)
        if not body.lora_name or not body.lora_path:
            missing = "lora_path" if body.lora_name else "lora_name"
            message = "Both 'lora_name' and 'lora_path' must be provided."
            raise FieldError(message, param=missing)
        fleet = self._fleet_of(asked_model(request))
        await fleet.load_adapter(body.lora_name, body.lora_path, replaces=body.load_inplace)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        """Take an adapter's name away on all workers."""
        body = await self._read(request, UnloadAdapterBody)
        if not body.lora_name:
            message = "'lora_name' needs to be provided to unload a LoRA adapter."
            raise FieldError(message, param="lora_name")
        await self._fleet_of(asked_model(request)).unload_adapter(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def _read(self, request: Request, schema: type[B]) -> B:
        raw = await read_body(request, self._limits)
        try:
            return schema.model_validate_json(raw)
        except pydantic.ValidationError as error:
            raise field_error(error) from error


def add_adapters(app: FastAPI, endpoints: AdapterEndpoints) -> None:
    """Add both to `app`."""
    app.add_api_route(LOAD_PATH, endpoints.load, methods=["POST"], tags=["operations"])
    app.add_api_route(UNLOAD_PATH, endpoints.unload, methods=["POST"], tags=["operations"])
