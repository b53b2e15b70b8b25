"""Tools with the official client against a running cluster: prefill and decode apart.

The model is random: what it calls, and with what, comes from the grammar alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.e2e.one_cluster import one_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.processes import Cluster

pytestmark = one_cluster

ASKED: Any = [{"role": "user", "content": "What is a baton?"}]
CITIES = ["Köln", "Rom"]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "now": {"type": "boolean"}},
    "required": ["city", "now"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": CITIES}},
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "get_time"}},
]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def model(cluster: Cluster) -> str:
    return cluster.model.name


def check(call: Any) -> None:
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_time":
        assert arguments == {}
    else:
        assert call.function.name == "get_weather"
        assert set(arguments) == {"city", "now"}
        assert arguments["city"] in CITIES
        assert isinstance(arguments["now"], bool)


@pytest.mark.parametrize("seed", range(3))
def test_required_calls_are_calls(client: openai.OpenAI, model: str, seed: int) -> None:
    reply = client.chat.completions.create(
        model=model,
        messages=ASKED,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        n=2,
        seed=seed,
        temperature=1.0,
    )
    for choice in reply.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        [call] = choice.message.tool_calls or []
        check(call)


def test_a_named_function_is_called_once(client: openai.OpenAI, model: str) -> None:
    with client.chat.completions.stream(
        model=model, messages=ASKED, tools=TOOLS, tool_choice=NAMED, temperature=1.0
    ) as stream:
        kinds = [event.type for event in stream]
        [choice] = stream.get_final_completion().choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or []
    assert call.function.name == "get_weather"
    check(call)
    assert kinds.count("tool_calls.function.arguments.done") == 1


def test_a_schema_that_cannot_be_followed_is_named(client: openai.OpenAI, model: str) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "nothing"}}}
    tools: Any = [TOOLS[1], {"type": "function", "function": {"name": "f", "parameters": bad}}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=model, messages=ASKED, tools=tools, tool_choice="required"
        )
    assert caught.value.param == "tools[1].function.parameters"


def test_tools_without_a_parser_are_refused(client: openai.OpenAI, model: str) -> None:
    """The checkpoint's template shows no format."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=ASKED, tools=TOOLS)
    assert caught.value.param == "tools"
