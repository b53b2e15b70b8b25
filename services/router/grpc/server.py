"""The Router service: finds the model of each call."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from baton.v1 import router_pb2, router_pb2_grpc
from services.router.admission.caller import ANYBODY, Caller
from services.router.grpc.model_calls import ModelCalls

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from typing import Any

    import grpc

    from services.router.admission.tenant import Tenant
    from services.router.openai.catalogue import Catalogue
    from shared.rpc.auth import Metadata

    Context = grpc.aio.ServicerContext[Any, Any]


class RouterServicer(router_pb2_grpc.RouterServicer):
    """Serves baton.v1.Router."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        caller_of: Callable[[Metadata], Caller] = lambda _metadata: ANYBODY,
        rate_headers: Callable[[Tenant], Sequence[tuple[str, str]]] = lambda _: (),
        traced: bool = False,
    ) -> None:
        """Serve the models of `catalogue`.

        `caller_of` returns the caller of a call's metadata, `rate_headers` a tenant's rate-limit
        headers. `traced`: callers may pass a trace context with a request.
        """
        self._catalogue = catalogue
        self._caller_of = caller_of
        self._rate_headers = rate_headers
        self._traced = traced

    async def Generate(  # noqa: N802 the name in the contract
        self, request: router_pb2.GenerateRequest, context: Context
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        """Continue a prompt."""
        answers = await self._calls(request.model, context).generate(request, context)
        async with aclosing(answers) as responses:
            async for response in responses:
                yield response

    async def Chat(  # noqa: N802 the name in the contract
        self, request: router_pb2.ChatRequest, context: Context
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        """Answer a conversation."""
        answers = await self._calls(request.model, context).chat(request, context)
        async with aclosing(answers) as responses:
            async for response in responses:
                yield response

    async def ListModels(  # noqa: N802 the name in the contract
        self, request: router_pb2.ListModelsRequest, context: Context
    ) -> router_pb2.ListModelsResponse:
        """List the caller's models under all of their names."""
        backends = self._catalogue.visible(self._caller(context))
        models = [
            router_pb2.Model(
                id=name,
                max_model_len=backend.models.max_model_len,
                created=backend.models.created_s,
            )
            for backend in backends
            for name in backend.models.names
        ]
        return router_pb2.ListModelsResponse(models=models)

    def _calls(self, model: str, context: Context) -> ModelCalls:
        caller = self._caller(context)
        return ModelCalls(
            self._catalogue.pick(model, caller),
            caller,
            rate_headers=self._rate_headers,
            traced=self._traced,
        )

    def _caller(self, context: Context) -> Caller:
        return self._caller_of(context.invocation_metadata() or ())
