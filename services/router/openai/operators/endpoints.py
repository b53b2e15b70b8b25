"""Endpoints that vLLM has for operators: load, settings, the prefix cache, SageMaker's door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.openai.errors import FieldError
from services.router.openai.generating.chat import ChatCompletions
from services.router.openai.generating.completions import Completions
from services.router.openai.http.arrival import arrived_s
from services.router.openai.http.body import read_body
from services.router.openai.http.kind import is_chat
from services.router.openai.http.named_model import asked_model
from services.router.openai.replies.responses import json_response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.router.openai.backend import Backend
    from services.router.openai.catalogue import Catalogue
    from services.router.openai.operators.lifecycle import Fleet


class Cluster(Protocol):
    """The cluster as its operators see it."""

    def fleet_of(self, model: str | None) -> Fleet:
        """Return the workers of a model as one; None: those of all models.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        ...

    async def num_requests(self, model: str | None) -> int:
        """Return the requests that this router has let in and not answered. Raises as fleet_of."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return version, settings without secrets, and workers, ready for JSON."""
        ...

    async def reset_prefix_cache(self, model: str | None) -> bool:
        """Drop the cached prefixes of a model's workers, or of all; return whether all could.

        May be repeated. Raises as fleet_of.
        """
        ...


class OperatorEndpoints:
    """Paths of vLLM. Those that tell of other tenants, or change something, need an operator."""

    def __init__(self, catalogue: Catalogue, cluster: Cluster) -> None:
        self._catalogue = catalogue
        self._cluster = cluster

    async def load(self, request: Request) -> Response:
        """Return the number of requests in work, of all models or of `model`."""
        number = await self._cluster.num_requests(asked_model(request))
        return json_response({"server_load": number})

    async def server_info(self) -> Response:
        """Return version, settings and workers."""
        return json_response(dict(self._cluster.describe()))

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Drop cached prefixes, of all models or of `model`; false while blocks are in use."""
        if request.query_params.get("reset_running_requests", "false").lower() == "true":
            message = "reset_running_requests must be false: running requests keep their blocks"
            raise FieldError(message, param="reset_running_requests")
        done = await self._cluster.reset_prefix_cache(asked_model(request))
        return json_response({"success": done})

    async def tokenizer_info(self, request: Request) -> Response:
        """Return the content of tokenizer_config.json, of the default model or of `model`."""
        caller = self._catalogue.common.caller_of(request)
        backend = self._catalogue.pick(asked_model(request), caller)
        return json_response(dict(backend.tokenizer.config))


class Invocations:
    """The endpoint POST /invocations."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, request: Request) -> Response:
        """Answer a chat (with `messages`) or a completion, as SageMaker sends both here."""
        arrival_s = arrived_s(request)
        backend = self._backend
        raw = await read_body(request, backend.limits)
        endpoint = ChatCompletions(backend) if is_chat(raw) else Completions(backend)
        return await endpoint.respond(request, raw, arrival_s)
