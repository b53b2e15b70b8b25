"""What people put between their programs and the API: LangChain, a desktop client."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.e2e.one_cluster import one_cluster

if TYPE_CHECKING:
    from tests.e2e.processes import Cluster

#: Their own warnings are not ours to fix.
pytestmark = [one_cluster, pytest.mark.filterwarnings("ignore")]

HELLO = [{"role": "user", "content": "What is a baton?"}]


def optional(name: str) -> Any:
    """A package of the extra `clients`; imported when a test runs, for it may take seconds."""
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{name} is not installed; it is in the extra `clients`")


def test_langchain_invokes_and_streams(
    cluster: Cluster, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    chat = optional("langchain_openai").ChatOpenAI(
        model=model, base_url=f"{cluster.url}/v1", api_key="none", temperature=0, max_tokens=8
    )
    whole = chat.invoke("What is a baton?")
    assert whole.usage_metadata["input_tokens"] > 0
    chunks = list(chat.stream("What is a baton?"))
    assert "".join(chunk.content for chunk in chunks) == whole.content


def test_langchain_uses_responses(cluster: Cluster, model: str) -> None:
    chat = optional("langchain_openai").ChatOpenAI(
        model=model, base_url=f"{cluster.url}/v1", api_key="none", temperature=0, max_tokens=8,
        use_responses_api=True,
    )  # fmt: skip
    whole = chat.invoke("What is a baton?")
    assert "".join(chunk.text for chunk in chat.stream("What is a baton?")) == whole.text


def test_a_desktop_client_lists_models_and_streams_a_chat(cluster: Cluster, model: str) -> None:
    """The calls that AnythingLLM's "generic OpenAI" provider makes, through OpenAI's JS client."""
    headers = {
        "authorization": "Bearer sk-none",
        "accept": "application/json",
        "user-agent": "OpenAI/JS 4.95.1",
        "x-stainless-lang": "js",
        "x-stainless-retry-count": "0",
    }
    body = {
        "model": model,
        "messages": [{"role": "system", "content": "Be brief."}, *HELLO],
        "temperature": 0.7,
        "max_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with httpx.Client(base_url=f"{cluster.url}/v1", headers=headers) as client:
        listed = client.get("/models").json()
        assert [entry["id"] for entry in listed["data"]] == [model]
        text, reason, usage = "", None, None
        with client.stream("POST", "/chat/completions", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in filter(None, response.iter_lines()):
                if line == "data: [DONE]":
                    break
                chunk = json.loads(line.removeprefix("data: "))
                usage = chunk.get("usage") or usage
                for choice in chunk["choices"]:
                    text += choice["delta"].get("content") or ""
                    reason = choice.get("finish_reason") or reason
    assert text
    assert reason in ("stop", "length")
    assert usage is not None
    assert usage["completion_tokens"] > 0
