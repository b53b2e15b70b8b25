"""Schemas of the bodies in the OpenAPI document, so that /docs shows their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic.json_schema import models_json_schema

from services.router.anthropic.errors import is_anthropic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI
    from pydantic import BaseModel

_REFERENCE = "#/components/schemas/{model}"


_ERROR: dict[str, Any] = {
    "title": "Error",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "integer", "null"]},
            },
        }
    },
}
_MODEL: dict[str, Any] = {
    "name": "model",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
}
_ANY: dict[str, Any] = {"schema": {}}
_ANSWER_OR_STREAM: dict[str, Any] = {
    "application/json": _ANY,
    "text/event-stream": {"schema": {"type": "string"}},
}
#: For APIs whose events have names.
_NAMED_EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
}
_ANSWER_OR_NAMED_EVENTS: dict[str, Any] = {
    "application/json": _ANY,
    "text/event-stream": {"schema": _NAMED_EVENT},
}
#: Content types of bodies that are not JSON, or not only JSON.
_CONTENT: dict[str, dict[str, Any]] = {
    "/metrics": {"text/plain": {"schema": {"type": "string"}}},
    "/v1/chat/completions": _ANSWER_OR_STREAM,
    "/v1/completions": _ANSWER_OR_STREAM,
    "/inference/v1/generate": _ANSWER_OR_STREAM,
    "/v1/responses": _ANSWER_OR_NAMED_EVENTS,
    "/v1/messages": _ANSWER_OR_NAMED_EVENTS,
}
#: The error of Anthropic's API.
_ANTHROPIC_ERROR: dict[str, Any] = {
    "title": "AnthropicError",
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": "string"},
    },
}


def _document_answers(path: str, answers: dict[str, Any]) -> None:
    """Add what the framework does not document: errors, and bodies that are not JSON."""
    answers.pop("422", None)
    if path in _CONTENT:
        answers["200"]["content"] = _CONTENT[path]
    if path in ("/health", "/ping", "/ready"):
        answers["503"] = {"description": "Not ready", "content": {"application/json": _ANY}}
    schema = {"$ref": _REFERENCE.format(model="AnthropicError" if is_anthropic(path) else "Error")}
    answers["default"] = {
        "description": "Refused, or failed",
        "content": {"application/json": {"schema": schema}},
    }


def document_bodies(app: FastAPI, bodies: Mapping[str, tuple[type[BaseModel], ...]]) -> None:
    """Document the POST body of each path: one of the given schemas."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            # The framework caches its document, which is completed in place, once.
            _complete(original(), bodies)
        return original()

    # Replacing this method is the documented way to change the document.
    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any], bodies: Mapping[str, tuple[type[BaseModel], ...]]) -> None:
    models: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (model, "validation") for group in bodies.values() for model in group
    ]
    references, definitions = models_json_schema(models, ref_template=_REFERENCE)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(definitions.get("$defs", {}))
    schemas |= {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _document_answers(path, operation["responses"])
            if "{model}" in path:
                operation["parameters"] = [_MODEL]
    for path, group in bodies.items():
        options = [references[(model, "validation")] for model in group]
        schema = options[0] if len(options) == 1 else {"anyOf": options}
        document["paths"][path]["post"]["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
