"""The input of a batch: OpenAI's format, one request per line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path

#: Accepted values of `url`. The server decides whether it has the path.
ENDPOINTS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})


class BadLineError(Exception):
    """A line is not a valid request; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a line."""

    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """A line with a request, and its position: the content is read when the request is sent."""

    custom_id: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line without a valid request."""

    number: int
    reason: str


class BatchInput:
    """All lines, checked; the requests stay in the file."""

    def __init__(self, path: Path) -> None:
        """Check all lines.

        Raises:
            CommandError: the file cannot be read.
        """
        self.items: list[Item] = []
        self.bad_lines: list[BadLine] = []
        try:
            self._file = path.open("rb")
            self._scan()
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from error

    def read(self, item: Item) -> Request:
        """Read the request."""
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
    """Return the request of a line.

    Raises:
        BadLineError: it is not a request that a batch can contain.
    """
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
