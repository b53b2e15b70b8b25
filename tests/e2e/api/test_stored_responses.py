"""Stored responses of tenants, through the official client, on real processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:
    from tests.e2e.guarded import Guarded

ASKED: dict[str, Any] = {
    "model": "tiny",
    "temperature": 0.0,
    "max_output_tokens": 8,
    "extra_body": {"ignore_eos": True},
}
#: Too many tokens to end before the test has looked.
LONG = {**ASKED, "max_output_tokens": 1500}


def client_of(guarded: Guarded, tenant: str) -> openai.OpenAI:
    url, key = f"{guarded.cluster.url}/v1", guarded.disk.keys[tenant]
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0)


def test_a_tenant_goes_on_from_its_own_response(guarded: Guarded) -> None:
    with client_of(guarded, "ops") as mine, client_of(guarded, "ops2") as theirs:
        first = mine.responses.create(input="What is a baton?", **ASKED)
        assert mine.responses.retrieve(first.id) == first
        second = mine.responses.create(
            input="And who carries it?", previous_response_id=first.id, **ASKED
        )
        history: Any = [
            {"role": "user", "content": "What is a baton?"},
            *[item.model_dump(exclude_none=True) for item in first.output],
            {"role": "user", "content": "And who carries it?"},
        ]
        sent = mine.responses.create(input=history, store=False, **ASKED)
        assert second.output_text == sent.output_text
        assert second.usage is not None
        assert sent.usage is not None
        assert second.usage.input_tokens == sent.usage.input_tokens
        with pytest.raises(openai.NotFoundError):
            theirs.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError) as error:
            theirs.responses.create(input="a", previous_response_id=first.id, **ASKED)
        assert error.value.code == "previous_response_not_found"
        mine.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            mine.responses.retrieve(first.id)


def test_a_response_in_the_background_ends_or_is_cancelled(guarded: Guarded) -> None:
    with client_of(guarded, "ops") as client:
        made = client.responses.create(input="What is a baton?", background=True, **ASKED)
        assert made.status == "queued"
        done = until(client, made.id, "incomplete")
        assert (
            done.output_text
            == client.responses.create(input="What is a baton?", store=False, **ASKED).output_text
        )
        long = client.responses.create(input="What is a baton?", background=True, **LONG)
        until(client, long.id, "in_progress")
        cancelled = client.responses.cancel(long.id)
        assert cancelled.status == "cancelled"
        assert client.responses.retrieve(long.id) == cancelled
    # The blocks of the cancelled one are free again.
    guarded.cluster.wait_idle()


def test_a_stream_in_the_background_is_read_again(guarded: Guarded) -> None:
    with client_of(guarded, "ops") as client, client_of(guarded, "ops2") as theirs:
        asked: Any = {**ASKED, "max_output_tokens": 40, "background": True, "stream": True}
        seen = []
        with client.responses.create(input="What is a baton?", **asked) as stream:
            for event in stream:
                seen.append(event)
                if event.type == "response.output_text.delta":
                    break
        # The client is gone, and comes back.
        response_id = seen[0].response.id
        with pytest.raises(openai.NotFoundError):
            theirs.responses.retrieve(response_id, stream=True)
        after = seen[-1].sequence_number
        rest = client.responses.retrieve(response_id, stream=True, starting_after=after)
        seen += list(rest)
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert list(client.responses.retrieve(response_id, stream=True)) == seen
        done = seen[-1].response
        assert done.status == "incomplete"
        deltas = [each.delta for each in seen if each.type == "response.output_text.delta"]
        assert "".join(deltas) == done.output_text
        assert client.responses.retrieve(response_id) == done


def until(client: openai.OpenAI, response_id: str, status: str) -> Any:
    deadline_s = time.monotonic() + 30
    while (found := client.responses.retrieve(response_id)).status != status:
        assert time.monotonic() < deadline_s, found
        assert found.status in ("queued", "in_progress"), found
        time.sleep(0.02)
    return found
