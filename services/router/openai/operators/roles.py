"""POST /v1/workers/prefer: the role for which routers prefer a worker. For operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import pydantic
from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.openai.http.body import field_error, read_body
from services.router.openai.http.named_model import asked_model
from services.router.openai.replies.responses import json_response
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from services.router.fleet.roles import Preferred
    from shared.generation.limits import RequestLimits

PREFER_PATH = "/v1/workers/prefer"


class RoleFleet(Protocol):
    """All workers. Errors are BatonErrors; an order that fails changes nothing."""

    async def prefer(self, worker: str, role: Role) -> Preferred:
        """Have the worker of a name prefer a role; return when this router knows."""
        ...


class PreferBody(pydantic.BaseModel):
    """The body of /v1/workers/prefer."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    worker: str = pydantic.Field(min_length=1, max_length=256)
    role: Literal["prefill", "decode"]


class RoleEndpoint:
    """Its answer has the preference, and since which step of the engine it is in force."""

    def __init__(self, fleet_of: Callable[[str | None], RoleFleet], limits: RequestLimits) -> None:
        """`fleet_of` returns the workers of a model, or of all if it is None."""
        self._fleet_of = fleet_of
        self._limits = limits

    async def prefer(self, request: Request) -> Response:
        """Have a worker prefer a role. Nothing is drained: running requests and blocks stay."""
        raw = await read_body(request, self._limits)
        try:
            body = PreferBody.model_validate_json(raw)
        except pydantic.ValidationError as error:
            raise field_error(error) from error
        found = await self._fleet_of(asked_model(request)).prefer(body.worker, Role(body.role))
        return json_response(
            {
                "worker": found.worker,
                "role": found.role.value,
                "from_step": found.from_step,
                "limits": list(found.limits),
            }
        )


def add_roles(app: FastAPI, endpoint: RoleEndpoint) -> None:
    """Add it to `app`."""
    app.add_api_route(PREFER_PATH, endpoint.prefer, methods=["POST"], tags=["operations"])
