"""The official openai client against a running cluster: what tests/e2e/api/test_openai.py lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import openai
import pydantic
import pytest

from tests.e2e.clients.structured import structured
from tests.e2e.one_cluster import one_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.processes import Cluster

pytestmark = one_cluster

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_output_tokens": 12}
EXTRA = {"ignore_eos": True}


@pytest.fixture
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_response_says_what_a_chat_says(client: openai.OpenAI, model: str) -> None:
    response = client.responses.create(
        model=model, instructions="Be brief.", input="What is a baton?", extra_body=EXTRA, **GREEDY
    )
    chat = client.chat.completions.create(
        model=model,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is a baton?"},
        ],
        max_tokens=12,
        temperature=0.0,
        extra_body=EXTRA,
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == 12


def test_a_streamed_response_is_put_together(client: openai.OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "input": "What is a baton?", "extra_body": EXTRA}
    whole = client.responses.create(**asked, **GREEDY)
    # The helper follows the events and raises if their order is not the official one.
    with client.responses.stream(**asked, **GREEDY) as stream:
        events = list(stream)
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == whole.output_text
    assert events[0].type == "response.created"
    # Of an answer that was cut off, the helper knows no final response.
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text


def test_a_conversation_goes_on_with_what_was_said(client: openai.OpenAI, model: str) -> None:
    first = client.responses.create(
        model=model, input="What is a baton?", extra_body=EXTRA, **GREEDY
    )
    history: Any = [
        {"role": "user", "content": "What is a baton?"},
        *[item.model_dump(exclude_none=True) for item in first.output],
        {"role": "user", "content": "And who carries it?"},
    ]
    second = client.responses.create(model=model, input=history, extra_body=EXTRA, **GREEDY)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0


def test_state_is_refused_by_name(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model=model, input="a", previous_response_id="resp_1")
    assert error.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_embeddings_are_refused_with_a_reason(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError, match="makes no vectors"):
        client.embeddings.create(model=model, input="a")


class Weather(pydantic.BaseModel):
    """What a tool takes, and what a parsed answer is: few values, so that random weights end."""

    model_config = pydantic.ConfigDict(extra="forbid")

    sunny: bool
    wind: Literal["low", "high"]


TOOL: Any = {"name": "report", "description": "d", "parameters": Weather.model_json_schema()}


def test_a_parsed_chat_is_an_object(client: openai.OpenAI, model: str) -> None:
    with structured():
        chat = client.chat.completions.parse(
            model=model,
            messages=[{"role": "user", "content": "How is it?"}],
            response_format=Weather,
            max_tokens=400,
            seed=1,
        )
    assert isinstance(chat.choices[0].message.parsed, Weather)


def test_a_parsed_response_is_an_object(client: openai.OpenAI, model: str) -> None:
    with structured():
        response = client.responses.parse(
            model=model, input="How is it?", text_format=Weather, max_output_tokens=400,
            extra_body={"seed": 1},
        )  # fmt: skip
    assert isinstance(response.output_parsed, Weather)


def test_tools_that_must_be_called(client: openai.OpenAI, model: str) -> None:
    asked: dict[str, Any] = {
        "model": model,
        "input": "How is it?",
        "tools": [{"type": "function", **TOOL}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 400,
        "extra_body": {"seed": 1},
    }
    with structured():
        response = client.responses.create(**asked)
    [call] = [item for item in response.output if item.type == "function_call"]
    assert call.name == "report"
    Weather.model_validate_json(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "noted"}
    history: Any = [{"role": "user", "content": "How is it?"}, call.model_dump(), result]
    again = client.responses.create(**{**asked, "input": history, "tool_choice": "none"})
    assert all(item.type == "message" for item in again.output)
    with client.responses.stream(**asked) as stream:
        streamed = stream.until_done().get_final_response()
    assert [item.type for item in streamed.output] == ["function_call"]
