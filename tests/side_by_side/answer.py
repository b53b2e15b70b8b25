"""What is compared of an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.side_by_side.shape import Shape, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Parts of an event stream's answer that are of the same kind get one shape.
_STREAM = "text/event-stream"
#: Where the texts of the APIs are.
_TEXTS = ("text", "content", "reasoning")


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, media type, shape, an error's words, and the text."""

    status: int
    media_type: str
    #: Of a stream: of each kind of event, its name before the path.
    shape: Shape = field(default_factory=dict)
    #: `type`, `code` and `param`, as they are; None of a success.
    error: dict[str, Any] | None = None
    text: str | None = None
    #: Of a failure, for people. It is not compared.
    message: str = ""


def read(status: int, content_type: str, body: str) -> Answer:
    """Read an answer's body."""
    media_type = content_type.partition(";")[0].strip()
    if media_type == _STREAM:
        return _stream(status, media_type, body)
    if media_type != "application/json" or not body:
        return Answer(status, media_type if body else "")
    value = json.loads(body)
    error = value.get("error") if isinstance(value, dict) else None
    if status >= 400:
        return Answer(
            status, media_type, shape_of([value]), error=_words(error), message=body[:300]
        )
    return Answer(status, media_type, shape_of([value]), text=_text(value))


def _words(error: Any) -> dict[str, Any] | None:
    if not isinstance(error, dict):
        return None
    return {name: error.get(name) for name in ("type", "code", "param")}


def _text(value: Any) -> str | None:
    """All texts of an answer, one after the other."""
    if not isinstance(value, dict):
        return None
    parts: list[Any] = []
    for choice in value.get("choices") or ():
        parts.append(choice.get("text") or choice.get("token_ids"))
        parts.append((choice.get("message") or {}).get("content"))
    for item in value.get("output") or ():
        parts += [part.get("text") for part in item.get("content") or ()]
    if isinstance(value.get("content"), list):
        parts += [part.get("text") for part in value["content"]]
    said = [str(part) for part in parts if part]
    return "\n".join(said) if said else None


def _stream(status: int, media_type: str, body: str) -> Answer:
    kinds: dict[str, list[Any]] = {}
    text: list[str] = []
    error = None
    for name, data in _events(body):
        if data == "[DONE]":
            kinds.setdefault("[DONE]", [])
            continue
        value = json.loads(data)
        kinds.setdefault(_kind(name, value), []).append(value)
        text += _deltas(value)
        error = error or _words(value.get("error"))
    shape: Shape = {}
    for kind, values in kinds.items():
        shape[kind] = "event"
        shape |= {f"{kind}: {path}": types for path, types in shape_of(values).items() if path}
    return Answer(status, media_type, shape, error=error, text="".join(text) or None)


def _events(body: str) -> Iterator[tuple[str, str]]:
    for block in body.replace("\r\n", "\n").split("\n\n"):
        name, data = "", []
        for line in block.split("\n"):
            field_name, _, rest = line.partition(":")
            if field_name == "event":
                name = rest.strip()
            elif field_name == "data":
                data.append(rest.removeprefix(" "))
        if data:
            yield name, "\n".join(data)


def _kind(name: str, value: dict[str, Any]) -> str:
    """An event's name; a chunk is the first, the last, the usage, or in between."""
    if name or "error" in value:
        return name or "error"
    choices = value.get("choices")
    if not choices:
        return "usage"
    if any(choice.get("finish_reason") for choice in choices):
        return "last"
    return "first" if any("role" in choice.get("delta", {}) for choice in choices) else "middle"


def _deltas(value: dict[str, Any]) -> Iterator[str]:
    for choice in value.get("choices") or ():
        yield choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    if value.get("type") == "response.output_text.delta":
        yield value["delta"]
    if value.get("type") == "content_block_delta":
        yield value["delta"].get("text", "")
