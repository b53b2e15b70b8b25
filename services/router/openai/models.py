"""GET /v1/models, and the model name of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.openai.replies.responses import json_response

if TYPE_CHECKING:
    from services.router.admission.caller import Caller
    from services.router.models import Adapters, AskedModel
    from services.router.openai.catalogue import Catalogue
    from shared.request.adapter_ref import AdapterRef


class ServedModel(Protocol):
    """The served model's facts for the API and for checks of requests."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names for requests; the first is the model's own."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer [tokens]; raises NoWorkerError before a worker registered."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of tokens with logits."""
        ...

    @property
    def created_s(self) -> int:
        """Start of its service, in Unix seconds."""
        ...

    @property
    def adapters(self) -> Adapters:
        """The adapters of the model."""
        ...

    def knows(self, name: str) -> bool:
        """Return whether requests may use this name."""
        ...

    def resolve(self, name: str | None) -> AskedModel:
        """Return what a request's model name means.

        Raises:
            ModelNotFoundError: the model is not served.
        """
        ...


class ModelCard(msgspec.Struct):
    """A model in the format of OpenAI's clients and vLLM's tools."""

    id: str
    created: int
    max_model_len: int
    #: The model's own name, or an adapter's folder.
    root: str
    object: str = "model"
    owned_by: str = "baton"
    #: Of an adapter: the name of its model.
    parent: str | None = None


class ModelList(msgspec.Struct):
    """All models."""

    data: list[ModelCard]
    object: str = "list"


class ModelEndpoints:
    """The endpoints below /v1/models."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def list_all(self, request: Request) -> Response:
        """Return every served name: each model's, then those of its adapters."""
        cards = []
        for backend in self._catalogue.visible(self._caller(request)):
            models = backend.models
            cards += [_card(models, name) for name in models.names]
            cards += [_card(models, each.name, each) for each in models.adapters.all()]
        return json_response(ModelList(cards))

    async def retrieve(self, request: Request) -> Response:
        """Return one model."""
        name = request.path_params["model"]
        models = self._catalogue.pick(name, self._caller(request)).models
        return json_response(_card(models, name, models.resolve(name).adapter))

    def _caller(self, request: Request) -> Caller:
        return self._catalogue.common.caller_of(request)


def _card(models: ServedModel, name: str, adapter: AdapterRef | None = None) -> ModelCard:
    card = ModelCard(name, models.created_s, models.max_model_len, models.names[0])
    if adapter is not None:
        card.root, card.parent = adapter.path, models.names[0]
    return card
