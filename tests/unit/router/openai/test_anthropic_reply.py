"""Any answer, in any pieces: a message's events and the whole of it say the same."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from anthropic.types import Message as OfficialMessage
from hypothesis import given

from services.router.anthropic.reply import MessageReply, read_input
from services.router.openai.replies.responses import JSON
from tests.fakes.clients.official_events import message_events
from tests.fakes.text.answer_events import answers, parts_of, pieces_of, reader_of

if TYPE_CHECKING:
    from services.router.parsers.events import ChatEvent


@given(answers())
def test_a_stream_and_the_whole_are_the_same_answer(said: list[list[ChatEvent]]) -> None:
    events = message_events(_stream(said))
    message = json.loads(JSON.encode(asyncio.run(_reply(said).whole(parts_of(said)))))
    OfficialMessage.model_validate(message)
    blocks = _put_together(events)
    assert blocks == message["content"]
    assert events[-2]["delta"]["stop_reason"] == message["stop_reason"]
    assert events[-2]["usage"] == message["usage"]


def test_the_input_of_a_tool_is_an_object() -> None:
    assert read_input('{"a": 1}') == {"a": 1}
    for text in ("", "[1]", "{", "null", "{" * 5000, "\ud800"):
        assert read_input(text) == {}


def _reply(said: list[list[ChatEvent]]) -> MessageReply:
    return MessageReply(reader_of(said), request_id="r", model="m", num_prompt_tokens=7)


def _stream(said: list[list[ChatEvent]]) -> str:
    reply = _reply(said)
    frames = [reply.event(0, piece) for piece in pieces_of(said)]
    return b"".join([*frames, reply.last_event(), reply.done]).decode()


def _put_together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks, from what was started and from deltas alone; none is open beside another."""
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    open_index = None
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert (open_index, event["index"]) == (None, len(blocks))
                open_index = event["index"]
                blocks.append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == open_index
                block, delta = blocks[event["index"]], event["delta"]
                kind = delta.pop("type").removesuffix("_delta")
                if kind == "input_json":
                    text = inputs.get(event["index"], "") + delta["partial_json"]
                    inputs[event["index"]] = text
                elif kind == "signature":
                    block["signature"] = delta["signature"]
                else:
                    block[kind] += delta[kind]
            case "content_block_stop":
                assert event["index"] == open_index
                open_index = None
    for index, text in inputs.items():
        blocks[index]["input"] = read_input(text)
    return blocks
