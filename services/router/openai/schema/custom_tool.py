"""Custom tools: calls whose input is a text and no JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.router.chat.tools import MAX_NAME_CHARS, NAME_PATTERN

_STRICT = ConfigDict(strict=True, extra="forbid")


class TextFormat(BaseModel):
    """Any text."""

    model_config = _STRICT

    type: Literal["text"]


class Grammar(BaseModel):
    """A grammar that the whole input matches."""

    model_config = _STRICT

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


class GrammarFormat(BaseModel):
    """A text that a grammar describes."""

    model_config = _STRICT

    type: Literal["grammar"]
    grammar: Grammar


CustomFormat = Annotated[TextFormat | GrammarFormat, Field(discriminator="type")]


class CustomDefinition(BaseModel):
    """A custom tool that the model may call."""

    model_config = _STRICT

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=MAX_NAME_CHARS)]
    description: str | None = None
    format: CustomFormat | None = None


class CustomTool(BaseModel):
    """A custom tool, as an element of `tools`."""

    model_config = _STRICT

    type: Literal["custom"]
    custom: CustomDefinition
