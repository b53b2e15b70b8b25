"""Writes the tables of fields in docs/api.md from the schemas that requests are checked against.

python -m scripts.api_table [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.router.anthropic import schema as anthropic
from services.router.openai.responses_api import schema as responses
from services.router.openai.schema import unsupported
from services.router.openai.schema.chat import ChatBody
from services.router.openai.schema.completion import CompletionBody
from services.router.openai.schema.sampling import SamplingExtras
from services.router.openai.tokens_api import schema as tokens
from services.router.openai.vectors import schema as vectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import BaseModel

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
#: A table stands between these two comments.
_TABLE = re.compile(r"(<!-- fields of (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NAMES = {
    "boolean": "true or false",
    "integer": "integer",
    "number": "number",
    "object": "object",
    "string": "string",
}
#: Fields whose shape is checked by code.
_BY_HAND = {
    "guided_choice": "list of string",
    "guided_grammar": "string",
    "guided_json": "JSON Schema",
    "guided_regex": "string",
    "response_format": "{`type`, `json_schema`}",
    "structured_outputs": "object, as vLLM's",
    "stop": "string or list of string",
    "tool_choice": "`none`, `auto`, `required`, or an object that names a tool or some tools",
    "prompt": "string, list of tokens, or list of either",
    "input": "string, list of tokens, or list of either",
}


#: Fields of an object that are told elsewhere.
_MANY = 16


@dataclass(frozen=True, slots=True)
class Api:
    """What one endpoint reads, and what it knows and does not read."""

    schema: type[BaseModel]
    refused: Mapping[str, str]
    ignored: Mapping[str, str] = field(default_factory=dict)
    #: What it reads in place of `schema` if the body has messages.
    chat: type[BaseModel] | None = None

    @property
    def fields(self) -> set[str]:
        """Names of all fields that it reads."""
        return {*self.schema.model_fields, *(self.chat.model_fields if self.chat else ())}


APIS = {
    "/v1/responses": Api(responses.ResponsesBody, responses.REFUSED, responses.IGNORED),
    "/v1/messages": Api(anthropic.MessagesBody, anthropic.REFUSED, anthropic.IGNORED),
    "/v1/chat/completions": Api(ChatBody, unsupported.REFUSED, unsupported.IGNORED),
    "/v1/completions": Api(CompletionBody, unsupported.REFUSED, unsupported.IGNORED),
    "/inference/v1/generate": Api(tokens.GenerateBody, tokens.REFUSED, tokens.IGNORED),
}
#: The endpoints of vectors, which generate nothing.
VECTOR_APIS = {
    "/v1/embeddings": Api(
        vectors.EmbeddingBody, {}, vectors.IGNORED, chat=vectors.EmbeddingChatBody
    ),
    "/v1/classify": Api(vectors.ClassifyBody, {}, vectors.IGNORED, chat=vectors.ClassifyChatBody),
    "/pooling": Api(vectors.PoolingBody, {}, vectors.IGNORED, chat=vectors.PoolingChatBody),
    "/v1/rerank": Api(vectors.RerankBody, {}, vectors.IGNORED),
    "/v1/score": Api(vectors.ScoreBody, {}, vectors.IGNORED),
}


def written(page: str) -> str:
    """The page with its tables as they have to be."""
    apis = APIS | VECTOR_APIS
    return _TABLE.sub(lambda found: found[1] + table(apis[found[2]]) + found[3], page)


def table(api: Api) -> str:
    """The fields of one endpoint. What is in no row is ignored."""
    rows = ["| field | | what it takes, or why not |", "|---|---|---|", *_rows(api)]
    return "\n".join(rows) + "\n"


def _rows(api: Api) -> Iterator[str]:
    document = api.schema.model_json_schema(by_alias=True)
    beyond = _beyond(api.schema)
    for kind in ("supported", "engine"):
        for name, schema in document["properties"].items():
            if name not in api.ignored and (name in beyond) == (kind == "engine"):
                takes = describe(schema, document) or _BY_HAND.get(name, "checked by code")
                yield f"| `{name}` | {kind} | {takes} |"
    for name, reason in sorted(api.refused.items()):
        if name not in document["properties"]:
            yield f"| `{name}` | **refused** | {reason} |"
    for name, reason in sorted(api.ignored.items()):
        yield f"| `{name}` | ignored | {reason} |"


def _beyond(schema: type[BaseModel]) -> set[str]:
    """Fields that are none of the API's own."""
    if not issubclass(schema, SamplingExtras):
        return set()
    return set(SamplingExtras.model_fields) - set(schema.__annotations__)


def describe(schema: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """A JSON Schema in some words."""
    if "$ref" in schema:
        return describe(document["$defs"][schema["$ref"].rpartition("/")[2]], document)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options is not None:
        named = [describe(option, document) for option in options if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(named))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "array":
            return f"list of {describe(schema['items'], document)}"
        case "object" if "properties" in schema:
            return _object(schema)
        case kind:
            return _NAMES.get(str(kind), "") + _bounds(schema)


def _object(schema: Mapping[str, Any]) -> str:
    if len(schema["properties"]) > _MANY:
        return "object"
    kind = schema["properties"].get("type", {})
    if "const" in kind or "enum" in kind:
        return describe(kind, schema)
    return "{" + ", ".join(f"`{name}`" for name in schema["properties"]) + "}"


def _bounds(schema: Mapping[str, Any]) -> str:
    words = {
        "minimum": "from {}",
        "exclusiveMinimum": "over {}",
        "maximum": "to {}",
        "exclusiveMaximum": "under {}",
    }
    said = [
        text.format(f"{schema[key]:g}") for key, text in words.items() if _is_small(schema, key)
    ]
    return " ".join(["", *said])


def _is_small(schema: Mapping[str, Any], key: str) -> bool:
    """The limits of integer types say nothing to a reader."""
    return key in schema and abs(schema[key]) < 2**31 - 1


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/api.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if they differ")
    options = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    after = written(before)
    if options.check and before != after:
        print("docs/api.md is not what the schemas say: python -m scripts.api_table")
        return 1
    if not options.check:
        PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
