"""Describes the bodies in the OpenAPI document, so that /docs shows their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic.json_schema import models_json_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI
    from pydantic import BaseModel

_REFERENCE = "#/components/schemas/{model}"


def document_bodies(app: FastAPI, bodies: Mapping[str, tuple[type[BaseModel], ...]]) -> None:
    """Have `app` document the POST body of each path: one of the given schemas."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            # The framework keeps the document that it builds; it is completed in place, once.
            _complete(original(), bodies)
        return original()

    # The documented way to change the document is to replace this method.
    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any], bodies: Mapping[str, tuple[type[BaseModel], ...]]) -> None:
    models: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (model, "validation") for group in bodies.values() for model in group
    ]
    references, definitions = models_json_schema(models, ref_template=_REFERENCE)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(definitions.get("$defs", {}))
    for path, group in bodies.items():
        options = [references[(model, "validation")] for model in group]
        schema = options[0] if len(options) == 1 else {"anyOf": options}
        document["paths"][path]["post"]["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
