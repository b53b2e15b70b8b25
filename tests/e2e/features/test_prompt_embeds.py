"""Prompts that give embeddings, over processes: transformers' tokens, and caches of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from baton_client import Baton, Embeds
from tests.e2e.asking import GREEDY, Asking, ask, ask_many, prompt_of
from tests.e2e.conftest import BLOCK_SIZE, MAX_NUM_BATCHED_TOKENS
from tests.e2e.oracle import expect
from tests.fakes.model.embeds import as_field, as_message, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.llm import LLM
    from tests.e2e.guarded import Guarded
    from tests.e2e.processes import Cluster

NUM_TOKENS = 12
WAIT_S = 60.0


@pytest.fixture(scope="module")
def transformers_model(checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


@torch.inference_mode()
def continued(model: Any, rows: torch.Tensor) -> list[int]:
    """What `generate` of transformers answers to `inputs_embeds`."""
    found: list[int] = model.generate(
        inputs_embeds=rows[None],
        attention_mask=torch.ones(1, len(rows), dtype=torch.long),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0].tolist()
    return found


def complete(url: str, key: str = "", **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    given = {"max_tokens": NUM_TOKENS, "return_token_ids": True, **GREEDY, **body}
    return httpx.post(
        f"{url}/v1/completions", json=given, headers=headers, trust_env=False, timeout=WAIT_S
    )


@pytest.mark.parametrize("length", [1, BLOCK_SIZE, 3 * MAX_NUM_BATCHED_TOKENS + 5])
def test_rows_that_are_no_tokens_are_answered_as_by_transformers(
    cluster: Cluster, oracle: LLM, transformers_model: Any, length: int
) -> None:
    """Beside plain requests, handed over, twice in one body, and again from the caches."""
    generator = torch.Generator().manual_seed(length)
    rows = 0.3 * torch.randn(length, transformers_model.config.hidden_size, generator=generator)
    want, plain = continued(transformers_model, rows), prompt_of(70, seed=length)
    for turn in range(2):
        beside = Asking(cluster, plain, NUM_TOKENS)
        found = complete(
            cluster.url, prompt=plain, prompt_embeds=[as_field(rows), as_field(rows)], n=2
        ).json()
        answers = [choice["token_ids"] for choice in found["choices"]]
        assert answers[:4] == [want] * 4
        assert (
            answers[4:] == [list(expect(oracle, plain, max_tokens=NUM_TOKENS, temperature=0.0))] * 2
        )
        assert found["usage"]["prompt_tokens"] == 2 * length + 70
        assert found["choices"][0]["prompt_token_ids"] == [0] * length
        assert beside.result().token_ids == expect(
            oracle, plain, max_tokens=NUM_TOKENS, temperature=0.0
        )
        assert turn == 0 or found["usage"]["prompt_tokens_details"]["cached_tokens"] >= (
            2 * (length - 1) // BLOCK_SIZE * BLOCK_SIZE
        )
    cluster.wait_idle()


def test_the_rows_of_tokens_are_answered_as_the_tokens_from_caches_of_their_own(
    cluster: Cluster, oracle: LLM
) -> None:
    prompt = prompt_of(5 * BLOCK_SIZE + 3, seed=31)
    want = expect(oracle, prompt, max_tokens=NUM_TOKENS, temperature=0.0)
    assert ask(cluster, prompt, max_tokens=NUM_TOKENS, **GREEDY).token_ids == want
    rows = as_message(rows_of(cluster.model, prompt))
    first = ask(cluster, rows, max_tokens=NUM_TOKENS, **GREEDY)
    again = ask(cluster, rows, max_tokens=NUM_TOKENS, **GREEDY)
    assert (first.token_ids, again.token_ids) == (want, want)
    assert first.timings.prefill_worker == "prefill-0"
    assert first.usage.cached_tokens == 0
    assert again.usage.sources.local_hit == 5 * BLOCK_SIZE
    half = [*prompt[: 2 * BLOCK_SIZE], *prompt_of(40, seed=32)]
    other = ask(cluster, as_message(rows_of(cluster.model, half)), max_tokens=4, **GREEDY)
    assert other.usage.sources.local_hit == 2 * BLOCK_SIZE
    assert other.token_ids == expect(oracle, half, max_tokens=4, temperature=0.0)


def test_seeded_answers_are_those_to_the_tokens(cluster: Cluster, oracle: LLM) -> None:
    prompt = prompt_of(70, seed=33)
    params = {"max_tokens": 16, "temperature": 1.0, "seed": 11}
    rows = as_message(rows_of(cluster.model, prompt))
    replies = ask_many(cluster, rows, n=3, ignore_eos=True, **params)
    assert [reply.token_ids for reply in replies] == [
        expect(oracle, prompt, sample_index=index, **params) for index in range(3)
    ]


def test_a_part_of_a_chat_stands_where_the_template_writes_it(
    cluster: Cluster, oracle: LLM
) -> None:
    """The rows of a text's tokens are answered as the text."""
    tokenizer = oracle.tokenizer
    text = tokenizer.encode("of the same words", add_special_tokens=False)
    rows = rows_of(cluster.model, text)
    found = {}
    for name, middle in (
        ("text", {"type": "text", "text": "of the same words"}),
        ("rows", {"type": "prompt_embeds", "data": as_field(rows)}),
    ):
        content = [{"type": "text", "text": "A part"}, middle, {"type": "text", "text": "or two"}]
        reply = httpx.post(
            f"{cluster.url}/v1/chat/completions",
            json={
                "messages": [{"role": "user", "content": content}],
                "max_tokens": NUM_TOKENS,
                "return_token_ids": True,
                **GREEDY,
            },
            trust_env=False,
            timeout=WAIT_S,
        )
        assert reply.status_code == 200, reply.text
        found[name] = reply.json()
    answers = [found[name]["choices"][0]["token_ids"] for name in ("text", "rows")]
    assert answers[0] == answers[1]
    ids = found["text"]["prompt_token_ids"]
    shown = found["rows"]["prompt_token_ids"]
    at = shown.index(0)
    assert ids[at : at + len(text)] == text
    assert shown == [*ids[:at], *[0] * len(text), *ids[at + len(text) :]]


def test_the_sdk_sends_an_array(cluster: Cluster, oracle: LLM) -> None:
    prompt = prompt_of(37, seed=34)
    rows = rows_of(cluster.model, prompt).numpy()
    with Baton(f"127.0.0.1:{cluster.grpc_port}") as client:
        found = client.generate(Embeds.of(rows), max_tokens=8, temperature=0.0, ignore_eos=True)
    want = expect(oracle, prompt, max_tokens=8, temperature=0.0)
    assert found.answers[0].token_ids == want


def test_a_wrong_hidden_size_is_refused_by_name(cluster: Cluster) -> None:
    reply = complete(cluster.url, prompt_embeds=as_field(torch.ones(3, 95)))
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "prompt_embeds")
    assert "rows of 95 numbers; this model's hidden size is 96" in error["message"]
    with pytest.raises(grpc.RpcError) as refused:
        ask(cluster, as_message(torch.ones(3, 95)), max_tokens=1)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    cluster.wait_idle()


def test_they_are_refused_unless_they_are_allowed(guarded: Guarded) -> None:
    reply = complete(
        guarded.cluster.url, guarded.disk.keys["a"], prompt_embeds=as_field(torch.ones(3, 96))
    )
    assert reply.status_code == 400
    assert "--enable-prompt-embeds" in reply.json()["error"]["message"]
