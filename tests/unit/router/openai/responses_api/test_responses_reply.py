"""Any answer, in any pieces: a response's events and the whole of it say the same."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from openai.types.responses import Response as OfficialResponse

from services.router.openai.replies.responses import JSON
from services.router.openai.responses_api.reply import ResponseReply
from services.router.openai.responses_api.schema import ResponsesBody
from services.router.parsers.events import ContentDelta, Finish, ReasoningDelta
from tests.fakes.clients.official_events import response_events, without_times
from tests.fakes.text.answer_events import answers, parts_of, pieces_of, reader_of

if TYPE_CHECKING:
    from services.router.parsers.events import ChatEvent

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@given(answers())
def test_a_stream_and_the_whole_are_the_same_answer(said: list[list[ChatEvent]]) -> None:
    events = response_events(_stream(said))
    response = _whole(said)
    OfficialResponse.model_validate(response)
    assert without_times(events[-1]["response"]) == without_times(response)
    assert _put_together(events) == response["output"]
    assert [e["item"] for e in events if e["type"].endswith("item.done")] == response["output"]


def test_reasoning_tokens_are_counted() -> None:
    said: list[list[ChatEvent]] = [
        [],
        [ReasoningDelta("a")],
        [],
        [ReasoningDelta("b")],
        [ContentDelta("c")],
        [Finish("stop")],
    ]
    usage = _whole(said)["usage"]
    assert usage["output_tokens"] == 6
    assert usage["output_tokens_details"]["reasoning_tokens"] == 4


def _reply(said: list[list[ChatEvent]]) -> ResponseReply:
    body = ResponsesBody.model_validate({"input": "a", "tools": [TOOL]})
    return ResponseReply(body, reader_of(said), request_id="r", model="m", num_prompt_tokens=7)


def _stream(said: list[list[ChatEvent]]) -> str:
    reply = _reply(said)
    frames = [reply.event(0, piece) for piece in pieces_of(said)]
    return b"".join([*frames, reply.last_event(), reply.done]).decode()


def _whole(said: list[list[ChatEvent]]) -> Any:
    return json.loads(JSON.encode(asyncio.run(_reply(said).whole(parts_of(said)))))


def _put_together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items, from what was added and from deltas alone; the end says how each ended."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                items.append(event["item"])
            case "content_part.added":
                items[event["output_index"]]["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                item = items[event["output_index"]]
                assert item["id"] == event["item_id"]
                item["content"][event["content_index"]]["text"] += event["delta"]
            case "function_call_arguments.delta":
                items[event["output_index"]]["arguments"] += event["delta"]
            case "output_item.done":
                items[event["output_index"]]["status"] = event["item"]["status"]
    return items
