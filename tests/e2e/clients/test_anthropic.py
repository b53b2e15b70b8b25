"""The official anthropic client against a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import openai
import pytest

from tests.e2e.clients.structured import structured
from tests.e2e.one_cluster import one_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.guarded import Guarded
    from tests.e2e.processes import Cluster

pytestmark = one_cluster

HELLO: Any = [{"role": "user", "content": "What is a baton?"}]
#: The client has no parameter for sampling since its version 2.
EXTRA = {"temperature": 0.0, "ignore_eos": True}
GREEDY: dict[str, Any] = {"max_tokens": 12, "extra_body": EXTRA}


@pytest.fixture
def client(cluster: Cluster) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=cluster.url, api_key="none", max_retries=0) as client:
        yield client


def create(client: anthropic.Anthropic, model: str, **fields: Any) -> anthropic.types.Message:
    asked = {"model": model, "messages": HELLO, **GREEDY, **fields}
    message = client.messages.create(**asked)
    assert isinstance(message, anthropic.types.Message)
    return message


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message_says_what_a_chat_says(
    client: anthropic.Anthropic, model: str, cluster: Cluster
) -> None:
    message = create(client, model, system="Be brief.")
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none") as other:
        chat = other.chat.completions.create(
            model=model,
            messages=[{"role": "system", "content": "Be brief."}, *HELLO],
            max_tokens=12,
            extra_body=EXTRA,
        )
    assert text_of(message) == chat.choices[0].message.content
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 12
    assert chat.usage is not None
    cached = message.usage.cache_read_input_tokens or 0
    assert message.usage.input_tokens + cached == chat.usage.prompt_tokens


def test_the_stream_helper_puts_the_message_together(
    client: anthropic.Anthropic, model: str
) -> None:
    whole = create(client, model)
    with client.messages.stream(model=model, messages=HELLO, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(final) == text_of(whole)
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 12


def test_stop_sequences(client: anthropic.Anthropic, model: str) -> None:
    text = text_of(create(client, model))
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    message = create(client, model, stop_sequences=[stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert stop not in text_of(message)


def test_tokens_are_counted_as_they_are_paid(client: anthropic.Anthropic, model: str) -> None:
    count = client.messages.count_tokens(model=model, messages=HELLO)
    usage = create(client, model).usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_client_that_goes_away_frees_everything(client: anthropic.Anthropic, model: str) -> None:
    """The fixture beside looks at the workers afterwards."""
    asked: dict[str, Any] = {"model": model, "messages": HELLO, "extra_body": EXTRA}
    with client.messages.stream(**asked, max_tokens=1000) as stream:
        assert next(iter(stream)).type == "message_start"


def test_errors_are_the_clients_own(client: anthropic.Anthropic, model: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match="context length") as error:
        client.messages.create(model=model, messages=HELLO, max_tokens=4000)
    assert error.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="another", messages=HELLO, max_tokens=1)


def test_keys_are_checked_in_either_header(guarded: Guarded) -> None:
    url, key = guarded.cluster.url, guarded.disk.keys["a"]
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 2}
    with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as client:
        assert client.messages.create(**asked).usage.output_tokens
    older = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    response = httpx.post(f"{url}/v1/messages", headers=older, json=asked)
    assert response.json()["usage"]["output_tokens"]
    with (
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        client.messages.create(**asked)


def test_tools_that_must_be_called(client: anthropic.Anthropic, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {"wind": {"enum": ["low", "high"]}},
        "required": ["wind"],
        "additionalProperties": False,
    }
    asked: dict[str, Any] = {
        "model": model,
        "messages": HELLO,
        "tools": [{"name": "report", "description": "d", "input_schema": schema}],
        "tool_choice": {"type": "tool", "name": "report"},
        "max_tokens": 400,
        "extra_body": {"seed": 1},
    }
    with structured():
        message = client.messages.create(**asked)
    [call] = message.content
    assert call.type == "tool_use"
    assert (call.name, message.stop_reason) == ("report", "tool_use")
    assert call.input["wind"] in ("low", "high")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "noted"}
    turns: Any = [
        *HELLO,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    again = client.messages.create(**{**asked, "messages": turns, "tool_choice": {"type": "none"}})
    assert all(block.type == "text" for block in again.content)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in streamed.content] == ["tool_use"]
