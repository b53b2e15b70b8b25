"""The Router service: finds the model of each call."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from baton.v1 import router_pb2, router_pb2_grpc
from services.router.admission.caller import ANYBODY, Caller
from services.router.grpc.adapters import load_adapter, models_to_wire, unload_adapter
from services.router.grpc.model_calls import ModelCalls
from services.router.grpc.vectors import VectorCalls
from shared.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from typing import Any

    import grpc

    from services.router.admission.tenant import Tenant
    from services.router.openai.catalogue import Catalogue
    from services.router.openai.operators.adapters import AdapterFleet
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
        adapters: Callable[[str | None], AdapterFleet] | None = None,
        has_keys: bool = False,
    ) -> None:
        """Serve the models of `catalogue`.

        `caller_of` returns the caller of a call's metadata, `rate_headers` a tenant's rate-limit
        headers. `traced`: callers may pass a trace context with a request. `adapters`: returns what
        loads them on the workers of a model, or of the one that there is; None: it is not offered.
        `has_keys`: operators have their own.
        """
        self._catalogue = catalogue
        self._adapters = adapters
        self._has_keys = has_keys
        self._caller_of = caller_of
        self._rate_headers = rate_headers
        self._traced = traced

    async def Generate(  # noqa: N802 the name in the contract
        self, request: router_pb2.GenerateRequest, context: Context
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        """Continue a prompt."""
        calls = await self._calls(request.model, context)
        answers = await calls.generate(request, context)
        async with aclosing(answers) as responses:
            async for response in responses:
                yield response

    async def Chat(  # noqa: N802 the name in the contract
        self, request: router_pb2.ChatRequest, context: Context
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        """Answer a conversation."""
        calls = await self._calls(request.model, context)
        answers = await calls.chat(request, context)
        async with aclosing(answers) as responses:
            async for response in responses:
                yield response

    async def Embed(  # noqa: N802 the name in the contract
        self, request: router_pb2.EmbedRequest, context: Context
    ) -> AsyncGenerator[router_pb2.EmbedResponse, None]:
        """Return the vector of each text."""
        calls = await self._vector_calls(request.model, context)
        async with aclosing(calls.embed(request, context)) as responses:
            async for response in responses:
                yield response

    async def Rerank(  # noqa: N802 the name in the contract
        self, request: router_pb2.RerankRequest, context: Context
    ) -> router_pb2.RerankResponse:
        """Order documents by their relevance for a query."""
        calls = await self._vector_calls(request.model, context)
        return await calls.rerank(request, context)

    async def Score(  # noqa: N802 the name in the contract
        self, request: router_pb2.ScoreRequest, context: Context
    ) -> router_pb2.ScoreResponse:
        """Score pairs of texts."""
        calls = await self._vector_calls(request.model, context)
        return await calls.score(request, context)

    async def Classify(  # noqa: N802 the name in the contract
        self, request: router_pb2.ClassifyRequest, context: Context
    ) -> router_pb2.ClassifyResponse:
        """Classify texts."""
        calls = await self._vector_calls(request.model, context)
        return await calls.classify(request, context)

    async def ListModels(  # noqa: N802 the name in the contract
        self, request: router_pb2.ListModelsRequest, context: Context
    ) -> router_pb2.ListModelsResponse:
        """List the caller's models under all of their names, and their adapters."""
        backends = self._catalogue.visible(self._caller(context))
        models = [model for backend in backends for model in models_to_wire(backend.models)]
        return router_pb2.ListModelsResponse(models=models)

    async def LoadLoraAdapter(  # noqa: N802 the name in the contract
        self, request: router_pb2.LoadLoraAdapterRequest, context: Context
    ) -> router_pb2.LoadLoraAdapterResponse:
        """Load an adapter on all workers of a model."""
        self._require_operator(context)
        return await load_adapter(self._adapters, request)

    async def UnloadLoraAdapter(  # noqa: N802 the name in the contract
        self, request: router_pb2.UnloadLoraAdapterRequest, context: Context
    ) -> router_pb2.UnloadLoraAdapterResponse:
        """Take an adapter's name away on all workers."""
        self._require_operator(context)
        return await unload_adapter(self._adapters, request)

    async def _vector_calls(self, model: str, context: Context) -> VectorCalls:
        caller = self._caller(context)
        backend = self._catalogue.pick(model, caller)
        await backend.become_ready()
        return VectorCalls(backend.require_vectors(), caller)

    def _require_operator(self, context: Context) -> None:
        if self._has_keys and not self._caller(context).is_operator:
            raise AuthenticationError("this needs a key of an operator")

    async def _calls(self, model: str, context: Context) -> ModelCalls:
        caller = self._caller(context)
        backend = self._catalogue.pick(model, caller)
        await backend.become_ready()
        return ModelCalls(
            backend,
            caller,
            rate_headers=self._rate_headers,
            traced=self._traced,
        )

    def _caller(self, context: Context) -> Caller:
        return self._caller_of(context.invocation_metadata() or ())
