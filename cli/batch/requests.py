"""The input of a batch: OpenAI's format, one request per line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path

#: What may stand in `url`. Whether the server has it, it says itself.
ENDPOINTS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})


class BadLineError(Exception):
    """A line is no request; the message says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a line asks for."""

    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """A line that holds a request, and where: what is in it is read when its turn comes."""

    custom_id: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be sent."""

    number: int
    reason: str


class BatchInput:
    """Every line has been looked at; the requests stay in the file."""

    def __init__(self, path: Path) -> None:
        """Raises CommandError if the file cannot be read."""
        self.items: list[Item] = []
        self.bad_lines: list[BadLine] = []
        try:
            self._file = path.open("rb")
            self._scan()
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from error

    def read(self, item: Item) -> Request:
        """The request itself."""
        self._file.seek(item.offset)
        return parse_line(self._file.read(item.num_bytes))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _scan(self) -> None:
        offset = 0
        first_seen: dict[str, int] = {}
        for number, line in enumerate(self._file, start=1):
            if line.strip():
                try:
                    custom_id = parse_line(line).custom_id
                    if custom_id in first_seen:
                        message = f"line {first_seen[custom_id]} has the same custom_id"
                        raise BadLineError(message)
                    first_seen[custom_id] = number
                    self.items.append(Item(custom_id, offset, len(line)))
                except BadLineError as error:
                    self.bad_lines.append(BadLine(number, str(error)))
            offset += len(line)


def parse_line(line: bytes) -> Request:
    """Raises BadLineError if the line is not a request that a batch can hold."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLineError(f"no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadLineError("no JSON object")
    custom_id, body = fields.get("custom_id"), fields.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise BadLineError("custom_id must be a text that is not empty")
    if fields.get("method") != "POST":
        raise BadLineError("method must be POST")
    url = fields.get("url")
    if not isinstance(url, str) or url not in ENDPOINTS:
        raise BadLineError(f"url must be one of {', '.join(sorted(ENDPOINTS))}")
    if not isinstance(body, dict):
        raise BadLineError("body must be an object")
    if body.get("stream"):
        raise BadLineError("stream has no place in a batch")
    return Request(custom_id, url, body)
