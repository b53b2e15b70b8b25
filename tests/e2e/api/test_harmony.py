"""gpt-oss across a hand-off: asked in harmony and read back, over both of OpenAI's APIs.

The weights are random, so a processor of the workers forces what the model says of its own accord.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
import torch

from shared.text.tokenizer import Tokenizer
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.processes import Cluster
from tests.fakes.checkpoints.harmony import harmony_tokenizer, write_harmony_model
from tests.fakes.router.tool_api import WEATHER

if TYPE_CHECKING:
    from collections.abc import Iterator

    import transformers

PROCESSOR = "tests.fakes.engine.logits_processors:Script"
HELLO: Any = [
    {"role": "system", "content": "Be nice."},
    {"role": "user", "content": "Wie wird das Wetter in Rom? 🙂"},
]
CALL = (
    "<|channel|>analysis<|message|>Where? é🙂<|end|><|start|>assistant<|channel|>commentary"
    "<|message|>I will look.<|end|><|start|>assistant<|channel|>commentary to="
    'functions.get_weather <|constrain|>json<|message|>{"city": "Rom"}<|call|>'
)
FINAL = (
    "<|channel|>analysis<|message|>Sunny.<|end|><|start|>assistant<|channel|>final<|message|>"
    "It is sunny, 2 < 3.<|return|>"
)
NUM_TOKENS = 20


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Cluster, transformers.PreTrainedModel]]:
    """A prefill and a decode worker, and transformers with the same weights."""
    folder = tmp_path_factory.mktemp("harmony")
    oracle = write_harmony_model(folder / "oss")
    cluster = Cluster(folder / "oss", folder)
    try:
        flags = (*ENGINE_FLAGS, "--logits-processors", PROCESSOR)
        cluster.add_worker("prefill", "prefill-0", *flags)
        cluster.add_worker("decode", "decode-0", *flags, "--local-prefill-threshold", "0")
        cluster.wait_ready()
        yield cluster, oracle
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}


@pytest.fixture
def client(site: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{site[0].url}/v1", api_key="none", max_retries=0) as client:
        yield client


TOKENIZER = Tokenizer(harmony_tokenizer(), special_tokens={"eos_token": "<|return|>"})


def saying(text: str) -> dict[str, Any]:
    """What makes the model say this."""
    return {"vllm_xargs": {"script": TOKENIZER.encode(text)}}


def post(cluster: Cluster, path: str, body: dict[str, Any]) -> Any:
    response = httpx.post(f"{cluster.url}{path}", json={"model": "oss", **body}, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def test_greedy_tokens_are_those_of_transformers(site: Any) -> None:
    cluster, oracle = site
    asked = {"messages": HELLO, "tools": [WEATHER], "reasoning_effort": "low", "temperature": 0.0}
    prompt = post(cluster, "/v1/chat/completions/render", asked)["token_ids"]
    text = TOKENIZER.decode(prompt, skip_special_tokens=False)
    assert "\nReasoning: low\n" in text
    assert "<|start|>developer<|message|># Instructions\n\nBe nice.\n\n# Tools\n\n" in text
    assert text.endswith(f"<|start|>user<|message|>{HELLO[1]['content']}<|end|><|start|>assistant")
    with torch.inference_mode():
        ids = oracle.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None
        )[0, len(prompt) :].tolist()
    fields = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True}
    reply = post(cluster, "/v1/chat/completions", {**asked, **fields})
    assert reply["prompt_token_ids"] == prompt
    assert reply["choices"][0]["token_ids"] == ids
    assert reply["timings"]["prefill_worker"] == "prefill-0"


def test_a_chat_of_two_turns_is_read_from_its_stream(site: Any, client: openai.OpenAI) -> None:
    tools: Any = [WEATHER]
    with client.chat.completions.stream(
        model="oss", messages=HELLO, tools=tools, extra_body=saying(CALL)
    ) as stream:
        events = list(stream)
        [choice] = stream.get_final_completion().choices
    thoughts = [
        event.chunk.choices[0].delta.reasoning or ""  # type: ignore[attr-defined]  # ours
        for event in events
        if event.type == "chunk" and hasattr(event.chunk.choices[0].delta, "reasoning")
    ]
    assert "".join(thoughts) == "Where? é🙂"
    assert len(thoughts) > 1
    message = choice.message
    assert (message.content, choice.finish_reason) == ("I will look.", "tool_calls")
    [call] = message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Rom"}')

    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    history = [*HELLO, {**message.to_dict(), "reasoning": "".join(thoughts)}, result]
    body = {"messages": history, "tools": tools, **saying(FINAL)}
    prompt = post(site[0], "/v1/chat/completions/render", body)["token_ids"]
    text = TOKENIZER.decode(prompt, skip_special_tokens=False)
    assert "<|channel|>analysis<|message|>Where? é🙂<|end|>" in text
    assert "<|channel|>commentary<|message|>sunny<|end|><|start|>assistant" in text
    [choice] = post(site[0], "/v1/chat/completions", body)["choices"]
    assert choice["message"]["reasoning"] == "Sunny."
    assert choice["message"]["content"] == "It is sunny, 2 < 3."
    assert choice["finish_reason"] == "stop"


def test_responses_has_an_item_for_each_message(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", **WEATHER["function"]}
    with client.responses.stream(
        model="oss", input="Hi", tools=[tool], reasoning={"effort": "high"},
        extra_body=saying(CALL),
    ) as stream:  # fmt: skip
        kinds = [event.type for event in stream]
        output: list[Any] = stream.get_final_response().output
    assert kinds.count("response.reasoning_text.done") == 1
    assert kinds.count("response.output_text.done") == 1
    assert kinds.count("response.function_call_arguments.done") == 1
    reasoning, message, call = output
    assert reasoning.content[0].text == "Where? é🙂"
    assert message.content[0].text == "I will look."
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Rom"}')
