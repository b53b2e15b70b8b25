"""The official client with tools and reasoning, against a real server on a loopback port."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pydantic
import pytest

from services.router.parsers.find import REASONING_FORMATS, TOOL_FORMATS
from services.router.parsers.plan import ChatFormats
from tests.fakes.router.openai_api import MODEL, OpenAIApi, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

ASKED: Any = [{"role": "user", "content": "Wetter?"}]
CALLS = (
    "<think>\nZwei Städte.\n</think>\n\nMoment.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom"}}\n</tool_call>'
)
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


class GetWeather(pydantic.BaseModel):
    city: str


@pytest.fixture(scope="module")
def api() -> OpenAIApi:
    formats = ChatFormats(tools=TOOL_FORMATS["hermes"], reasoning=REASONING_FORMATS["think"])
    template = Path("tests/fakes/text/chat_templates/hermes.jinja").read_text()
    return OpenAIApi(CALLS, formats=formats, chat_template=template)


@pytest.fixture(scope="module")
def client(api: OpenAIApi) -> Iterator[openai.OpenAI]:
    with serve(api.app) as port:
        url = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
            yield client


def cities(message: Any) -> list[str]:
    assert message.tool_calls
    return [json.loads(call.function.arguments)["city"] for call in message.tool_calls]


def test_calls_are_answered_and_answered_again(client: openai.OpenAI, api: OpenAIApi) -> None:
    """One turn of what every agent does, with the client's own objects."""
    reply = client.chat.completions.create(model=MODEL, messages=ASKED, tools=TOOLS)
    [choice] = reply.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Moment."
    assert choice.message.reasoning_content == "Zwei Städte."  # type: ignore[attr-defined]  # not OpenAI's
    assert cities(choice.message) == ["Köln", "Rom"]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"Sonne {i}"}
        for i, call in enumerate(choice.message.tool_calls or [])
    ]
    history: Any = [*ASKED, choice.message, *results]
    # Without the definitions: the context of this API is short.
    client.chat.completions.create(model=MODEL, messages=history)
    prompt = api.tokenizer.decode(api.generator.requests[-1].prompt_token_ids, False)
    # What the model wrote comes back as it was, so its KV can be used again.
    assert CALLS in prompt
    assert "<tool_response>\nSonne 1\n</tool_response>" in prompt


def test_the_clients_own_accumulator_understands_the_deltas(client: openai.OpenAI) -> None:
    kinds: list[str] = []
    with client.chat.completions.stream(model=MODEL, messages=ASKED, tools=TOOLS) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "tool_calls.function.arguments.done":
                assert json.loads(event.arguments)["city"] in ("Köln", "Rom")
        final = stream.get_final_completion()
    [choice] = final.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Moment."
    assert cities(choice.message) == ["Köln", "Rom"]
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert kinds.count("tool_calls.function.arguments.delta") > 2


def test_parsed_arguments(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    reply = client.chat.completions.parse(model=MODEL, messages=ASKED, tools=[tool])
    calls = reply.choices[0].message.tool_calls or []
    assert [call.function.parsed_arguments for call in calls] == [
        GetWeather(city="Köln"),
        GetWeather(city="Rom"),
    ]


def test_reasoning_is_streamed_beside_the_content(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=ASKED, stream=True)
    deltas = [chunk.choices[0].delta for chunk in stream]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning == "Zwei Städte."
    assert "".join(delta.content or "" for delta in deltas).startswith("Moment.\n<tool_call>")


def test_wrong_tools_become_the_clients_errors(client: openai.OpenAI) -> None:
    bad: Any = [{"type": "function", "function": {"name": "no spaces"}}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ASKED, tools=bad)
    assert caught.value.param == "tools[0].function.name"
