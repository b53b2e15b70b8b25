"""The HTTP application: OpenAI's and Anthropic's APIs, and operators' endpoints."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from fastapi import FastAPI

from services.router.anthropic.endpoint import Messages
from services.router.anthropic.schema import CountTokensBody, MessagesBody
from services.router.doors.auth import AuthMiddleware
from services.router.doors.by_model import ByModel
from services.router.doors.cors import add_cors
from services.router.doors.error_handlers import add_error_handlers
from services.router.doors.rate_headers import RateLimitMiddleware
from services.router.doors.schema_docs import document_bodies
from services.router.openai.generating.chat import ChatCompletions
from services.router.openai.generating.chat_batch import ChatBatch, ChatBatchBody
from services.router.openai.generating.completions import Completions
from services.router.openai.generating.scoring import GenerativeScoring, ScoringBody
from services.router.openai.http.request_id import RequestIdMiddleware
from services.router.openai.http.trace import TraceMiddleware
from services.router.openai.http.unknown_fields import IgnoredFieldsMiddleware
from services.router.openai.models import ModelEndpoints
from services.router.openai.not_offered import add_refusals
from services.router.openai.operators.abort import AbortBody, AbortEndpoint, AbortNamedBody
from services.router.openai.operators.adapters import AdapterEndpoints, add_adapters
from services.router.openai.operators.endpoints import Invocations, OperatorEndpoints
from services.router.openai.operators.health import HealthEndpoints
from services.router.openai.operators.lifecycle import LifecycleEndpoints, add_lifecycle
from services.router.openai.operators.roles import RoleEndpoint, add_roles
from services.router.openai.operators.route import RouteEndpoint
from services.router.openai.responses_api.endpoint import Responses
from services.router.openai.responses_api.schema import ResponsesBody
from services.router.openai.responses_api.stored.endpoint import StoredEndpoints
from services.router.openai.schema.chat import ChatBody
from services.router.openai.schema.completion import CompletionBody
from services.router.openai.schema.tokenize import (
    DetokenizeBody,
    TokenizeChatBody,
    TokenizeTextBody,
)
from services.router.openai.tokens_api.derender import DerenderEndpoints
from services.router.openai.tokens_api.derender_schema import (
    DerenderChatBody,
    DerenderCompletionBody,
)
from services.router.openai.tokens_api.endpoint import TokenGeneration
from services.router.openai.tokens_api.render import (
    RenderChatBody,
    RenderCompletionBody,
    RenderEndpoints,
)
from services.router.openai.tokens_api.schema import GenerateBody
from services.router.openai.tokens_api.tokenize import TokenizeEndpoints
from services.router.openai.vectors.endpoints import VectorEndpoints
from services.router.openai.vectors.schema import (
    ClassifyBody,
    ClassifyChatBody,
    EmbeddingBody,
    EmbeddingChatBody,
    PoolingBody,
    PoolingChatBody,
    RerankBody,
    ScoreBody,
)
from services.router.openai.vectors.scoring import ScoreEndpoints

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector
    from pydantic import BaseModel

    from services.router.admission.tenant import Tenant
    from services.router.dashboard.routes import Dashboard
    from services.router.doors.auth import Authenticator
    from services.router.openai.backend import Common
    from services.router.openai.catalogue import Catalogue
    from services.router.openai.operators.endpoints import Cluster
    from services.router.settings.cors import CorsSettings

#: The second one is vLLM's newer name.
ABORT_BODIES = {"/abort_requests": AbortBody, "/inference/v1/abort_requests": AbortNamedBody}
#: The first is OpenAI's, Jina's or vLLM's newest, the others are older or Cohere's.
EMBEDDING_PATHS = ("/v1/embeddings",)
CLASSIFY_PATHS = ("/v1/classify", "/classify")
POOLING_PATHS = ("/pooling",)
SCORE_PATHS = ("/v1/score", "/score")
RERANK_PATHS = ("/v1/rerank", "/rerank", "/v2/rerank")
_VECTOR_BODIES: dict[str, tuple[type[BaseModel], ...]] = {
    **dict.fromkeys(EMBEDDING_PATHS, (EmbeddingBody, EmbeddingChatBody)),
    **dict.fromkeys(CLASSIFY_PATHS, (ClassifyBody, ClassifyChatBody)),
    **dict.fromkeys(POOLING_PATHS, (PoolingBody, PoolingChatBody)),
    **dict.fromkeys(SCORE_PATHS, (ScoreBody,)),
    **dict.fromkeys(RERANK_PATHS, (RerankBody,)),
}
#: The endpoints read their bodies themselves, so the schemas are listed for the framework here.
_BODIES: dict[str, tuple[type[BaseModel], ...]] = {
    "/v1/chat/completions": (ChatBody,),
    "/v1/completions": (CompletionBody,),
    "/v1/responses": (ResponsesBody,),
    "/v1/responses/input_tokens": (ResponsesBody,),
    "/v1/messages": (MessagesBody,),
    "/v1/messages/count_tokens": (CountTokensBody,),
    "/v1/chat/completions/batch": (ChatBatchBody,),
    "/generative_scoring": (ScoringBody,),
    "/inference/v1/generate": (GenerateBody,),
    "/v1/chat/completions/render": (RenderChatBody,),
    "/v1/completions/render": (RenderCompletionBody,),
    "/v1/chat/completions/derender": (DerenderChatBody,),
    "/v1/completions/derender": (DerenderCompletionBody,),
    "/tokenize": (TokenizeTextBody, TokenizeChatBody),
    "/detokenize": (DetokenizeBody,),
}


def create_app(
    catalogue: Catalogue,
    *,
    not_ready_because: Callable[[], Sequence[str]],
    notes: Callable[[], Sequence[str]] = tuple,
    registry: CollectorRegistry,
    version: str,
    cluster: Cluster | None = None,
    rate_headers: Callable[[Tenant], Sequence[tuple[str, str]]] | None = None,
    keys: Authenticator | None = None,
    open_metrics: bool = False,
    traced: bool = False,
    dashboard: Dashboard | None = None,
    cors: CorsSettings | None = None,
    has_docs: bool = True,
    whole_metrics: Callable[[], Awaitable[Collector]] | None = None,
) -> FastAPI:
    """Return the HTTP application. It starts nothing and does not own `catalogue`.

    not_ready_because: called on every GET /ready and /health; returns what is missing, or nothing.
    notes: returns the parts that are missing though requests can be served.
    cluster: without it there are no paths for its operators.
    rate_headers: returns the rate-limit headers of a tenant.
    keys: without it every client may use every path.
    traced: clients may pass a trace context with a request.
    dashboard: without it there is no live page.
    cors: without it browsers let no page of another site read answers.
    whole_metrics: returns what `/metrics` shows in place of `registry`.
    has_docs: whether there are /docs, /redoc and /openapi.json.
    """
    app = _new_app(version, has_docs=has_docs)
    _add_apis(app, catalogue, cluster)
    _add_health(app, HealthEndpoints(not_ready_because, notes, registry, version, whole_metrics))
    if dashboard is not None:
        dashboard.add_to(app)
    _add_last(app, catalogue.common, cluster)
    if rate_headers is not None:
        app.add_middleware(RateLimitMiddleware, rate_headers)
    _add_keys(app, keys, open_metrics=open_metrics, dashboard=dashboard)
    if traced:
        app.add_middleware(TraceMiddleware)
    # Outside the key check: a browser's preflight request carries no key.
    add_cors(app, cors)
    app.add_middleware(IgnoredFieldsMiddleware)
    # Outermost: requests that are refused by the layers below get an id as well.
    app.add_middleware(RequestIdMiddleware)
    return app


def _add_last(app: FastAPI, common: Common, cluster: Cluster | None) -> None:
    """Add what comes behind all paths, which are tried in order."""
    add_refusals(app)
    document_bodies(app, _bodies(common, cluster))
    add_error_handlers(app)


def _add_apis(app: FastAPI, catalogue: Catalogue, cluster: Cluster | None) -> None:
    by_model = ByModel(catalogue)
    _add_generation(app, by_model, catalogue.common)
    _add_tokens(app, by_model)
    _add_models(app, catalogue)
    if cluster is not None:
        _add_operators(app, by_model, catalogue, cluster)


def _new_app(version: str, *, has_docs: bool) -> FastAPI:
    return FastAPI(
        title="Baton",
        version=version,
        redirect_slashes=False,
        # Without it there are no documents either.
        openapi_url="/openapi.json" if has_docs else None,
    )


def _add_keys(
    app: FastAPI, keys: Authenticator | None, *, open_metrics: bool, dashboard: Dashboard | None
) -> None:
    if keys is None:
        return
    paths = frozenset() if dashboard is None else dashboard.open_paths
    app.add_middleware(AuthMiddleware, keys=keys, open_metrics=open_metrics, open_paths=paths)


def _bodies(common: Common, cluster: Cluster | None) -> dict[str, tuple[type[BaseModel], ...]]:
    either = {"/v1/route": common.explains, "/invocations": cluster is not None}
    found = _BODIES | {
        path: (CompletionBody, ChatBody) for path, is_there in either.items() if is_there
    }
    if common.makes_vectors:
        found |= _VECTOR_BODIES
    if common.aborter is not None:
        found |= {path: (schema,) for path, schema in ABORT_BODIES.items()}
    return found


def _add_operators(app: FastAPI, by_model: ByModel, catalogue: Catalogue, cluster: Cluster) -> None:
    operators = OperatorEndpoints(catalogue, cluster)
    app.add_api_route("/load", operators.load, tags=["operations"])
    app.add_api_route("/server_info", operators.server_info, tags=["operations"])
    app.add_api_route(
        "/reset_prefix_cache", operators.reset_prefix_cache, methods=["POST"], tags=["operations"]
    )
    app.add_api_route("/tokenizer_info", operators.tokenizer_info, tags=["tokens"])
    invocations = by_model(Invocations.create, lambda b: Invocations(b).create)
    app.add_api_route("/invocations", invocations, methods=["POST"], tags=["generate"])
    add_lifecycle(
        app,
        LifecycleEndpoints(cluster.fleet_of, catalogue.common.limits, cluster.reset_prefix_cache),
    )
    add_adapters(app, AdapterEndpoints(cluster.fleet_of, catalogue.common.limits))
    add_roles(app, RoleEndpoint(cluster.fleet_of, catalogue.common.limits))


def _add_generation(app: FastAPI, by_model: ByModel, common: Common) -> None:
    tags = list[str | Enum](["generate"])
    for path, endpoint in (
        ("/v1/responses", by_model(Responses.create, lambda b: Responses(b).create)),
        ("/v1/responses/input_tokens", by_model(Responses.count, lambda b: Responses(b).count)),
        ("/v1/messages", by_model(Messages.create, lambda b: Messages(b).create)),
        ("/v1/messages/count_tokens", by_model(Messages.count, lambda b: Messages(b).count)),
        (
            "/v1/chat/completions",
            by_model(ChatCompletions.create, lambda b: ChatCompletions(b).create),
        ),
        ("/v1/completions", by_model(Completions.create, lambda b: Completions(b).create)),
        ("/v1/chat/completions/batch", by_model(ChatBatch.create, lambda b: ChatBatch(b).create)),
    ):
        app.add_api_route(path, endpoint, methods=["POST"], tags=tags)
    if common.makes_vectors:
        _add_vectors(app, by_model)
    _add_stored(app, StoredEndpoints(common))
    if common.aborter is not None:
        abort = AbortEndpoint(common, common.aborter)
        endpoints = zip(ABORT_BODIES, (abort.abort, abort.abort_named), strict=True)
        for path, endpoint in endpoints:
            app.add_api_route(path, endpoint, methods=["POST"], tags=["operations"])
    if common.explains:
        route = by_model(RouteEndpoint.explain, lambda b: RouteEndpoint(b).explain)
        app.add_api_route("/v1/route", route, methods=["POST"], tags=["operations"])


def _add_vectors(app: FastAPI, by_model: ByModel) -> None:
    vectors, scores = VectorEndpoints, ScoreEndpoints
    for paths, endpoint in (
        (EMBEDDING_PATHS, by_model(vectors.embeddings, lambda b: vectors(b).embeddings)),
        (CLASSIFY_PATHS, by_model(vectors.classify, lambda b: vectors(b).classify)),
        (POOLING_PATHS, by_model(vectors.pooling, lambda b: vectors(b).pooling)),
        (SCORE_PATHS, by_model(scores.score, lambda b: scores(b).score)),
        (RERANK_PATHS, by_model(scores.rerank, lambda b: scores(b).rerank)),
    ):
        for path in paths:
            app.add_api_route(path, endpoint, methods=["POST"], tags=["vectors"])


def _add_tokens(app: FastAPI, by_model: ByModel) -> None:
    """Add the API of tokens, and what translates to it and from it."""
    render, derender = RenderEndpoints, DerenderEndpoints
    tokens = TokenizeEndpoints
    for path, endpoint in (
        (
            "/inference/v1/generate",
            by_model(TokenGeneration.create, lambda b: TokenGeneration(b).create),
        ),
        ("/v1/chat/completions/render", by_model(render.chat, lambda b: render(b).chat)),
        (
            "/v1/completions/render",
            by_model(render.completions, lambda b: render(b).completions),
        ),
        ("/v1/chat/completions/derender", by_model(derender.chat, lambda b: derender(b).chat)),
        (
            "/v1/completions/derender",
            by_model(derender.completions, lambda b: derender(b).completions),
        ),
        (
            "/generative_scoring",
            by_model(GenerativeScoring.create, lambda b: GenerativeScoring(b).create),
        ),
        ("/tokenize", by_model(tokens.tokenize, lambda b: tokens(b).tokenize)),
        ("/detokenize", by_model(tokens.detokenize, lambda b: tokens(b).detokenize)),
    ):
        app.add_api_route(path, endpoint, methods=["POST"], tags=["tokens"])


def _add_stored(app: FastAPI, stored: StoredEndpoints) -> None:
    one = "/v1/responses/{response_id}"
    for path, method, endpoint in (
        (one, "GET", stored.retrieve),
        (one, "DELETE", stored.delete),
        (f"{one}/cancel", "POST", stored.cancel),
        (f"{one}/input_items", "GET", stored.input_items),
    ):
        app.add_api_route(path, endpoint, methods=[method], tags=["generate"])


def _add_models(app: FastAPI, catalogue: Catalogue) -> None:
    models = ModelEndpoints(catalogue)
    app.add_api_route("/v1/models", models.list_all, tags=["models"])
    # Clients request this path for an empty model name.
    app.add_api_route("/v1/models/", models.list_all, include_in_schema=False)
    # A model's name may contain slashes, as Hugging Face's names do.
    app.add_api_route("/v1/models/{model:path}", models.retrieve, tags=["models"])


def _add_health(app: FastAPI, health: HealthEndpoints) -> None:
    app.add_api_route("/live", health.live, tags=["operations"])
    app.add_api_route("/health", health.health, tags=["operations"])
    app.add_api_route("/ping", health.ping, tags=["operations"])
    # SageMaker's probe may use either method. One route with both would repeat an operation id.
    app.add_api_route("/ping", health.ping, methods=["POST"], include_in_schema=False)
    app.add_api_route("/ready", health.ready, tags=["operations"])
    app.add_api_route("/version", health.version, tags=["operations"])
    app.add_api_route("/metrics", health.metrics, tags=["operations"])
