"""GET /v1/models, and which model a request means."""

from __future__ import annotations

from typing import Protocol

import msgspec
from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.openai.replies.responses import json_response


class ServedModel(Protocol):
    """What the API says of the model, and checks requests against."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names to use in requests; the first is its own."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer [tokens]; raises NoWorkerError before a worker registered."""
        ...

    @property
    def vocab_size(self) -> int:
        """Tokens the model has logits for."""
        ...

    @property
    def created_s(self) -> int:
        """Since when it is served, in Unix seconds."""
        ...

    def resolve(self, name: str | None) -> str:
        """The name to answer with; raises ModelNotFoundError."""
        ...


class ModelCard(msgspec.Struct):
    """A model as OpenAI's clients and vLLM's tools read it."""

    id: str
    created: int
    max_model_len: int
    root: str
    object: str = "model"
    owned_by: str = "baton"
    parent: str | None = None


class ModelList(msgspec.Struct):
    """All models."""

    data: list[ModelCard]
    object: str = "list"


class ModelEndpoints:
    """Lists the models."""

    def __init__(self, models: ServedModel) -> None:
        self._models = models

    async def list_all(self) -> Response:
        """Every name that is served."""
        return json_response(ModelList([self._card(name) for name in self._models.names]))

    async def retrieve(self, request: Request) -> Response:
        """One of them."""
        name = request.path_params["model"]
        self._models.resolve(name)
        return json_response(self._card(name))

    def _card(self, name: str) -> ModelCard:
        models = self._models
        return ModelCard(name, models.created_s, models.max_model_len, models.names[0])
