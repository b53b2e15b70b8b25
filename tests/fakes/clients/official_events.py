"""Streams as the official clients read them, checked against their own types."""

from __future__ import annotations

import json
from typing import Any

from anthropic.types import RawMessageStreamEvent
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

_RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_MESSAGE_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def response_events(text: str, *, first: int = 0) -> list[dict[str, Any]]:
    """A stream's events: each is numbered and named, and one that the official client knows."""
    frames = text.split("\n\n")
    assert frames.pop() == ""
    events = []
    for number, frame in enumerate(frames, first):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        _RESPONSE_EVENT.validate_python(event)
        events.append(event)
    return events


def message_events(text: str) -> list[dict[str, Any]]:
    """The events of a stream; each is named, and all but pings are ones that the client knows."""
    frames = text.split("\n\n")
    assert frames.pop() == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "error"):
            _MESSAGE_EVENT.validate_python(event)
        events.append(event)
    return events


def without_times(response: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one request to the next."""
    own = ("id", "created_at", "completed_at", "output")
    kept = {name: value for name, value in response.items() if name not in own}
    kept["output"] = [{**item, "id": None} for item in response["output"]]
    return kept
