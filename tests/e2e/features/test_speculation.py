"""I8, I11: a decode worker that speculates answers as one engine without it, over the hand-off."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.e2e.asking import Asking, ask, ask_many, prompt_of
from tests.e2e.conftest import ENGINE_FLAGS, add_decode
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.engine.llm import LLM

CONFIG = json.dumps({"method": "suffix", "suffix_decoding_max_spec_factor": 4.0, "adaptive": False})
#: Something to look up, and to loop in.
PROMPTS = [[*prompt_of(40, seed=1), *prompt_of(40, seed=1)[:30]], [7, 8, 9] * 20, prompt_of(90)]


@pytest.fixture(scope="module")
def speculating(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Every worker gets the setting, as from `baton up`; prefill workers have no use for it."""
    cluster = Cluster(checkpoint, tmp_path_factory.mktemp("speculating"))
    try:
        flags = ("--speculative-config", CONFIG)
        cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS, *flags)
        add_decode(cluster, "decode-0", *flags)
        cluster.wait_ready()
        yield cluster
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 5, "top_p": 0.9},
        {"temperature": 0.0, "repetition_penalty": 1.1, "min_tokens": 8},
    ],
)
def test_answers_are_equal(speculating: Cluster, oracle: LLM, params: dict[str, Any]) -> None:
    drafted = accepted = 0
    for prompt in PROMPTS:
        reply = ask(speculating, prompt, max_tokens=60, ignore_eos=True, **params)
        assert reply.token_ids == expect(oracle, prompt, max_tokens=60, **params)
        assert reply.timings.prefill_worker == "prefill-0"
        assert reply.usage.completion_tokens == 60
        drafted += reply.usage.num_draft_tokens
        accepted += reply.usage.num_accepted_tokens
    assert 0 <= accepted <= drafted
    if params == {"temperature": 0.0}:
        assert accepted > 0
    speculating.wait_idle()


def test_a_batch_and_several_answers_are_equal(speculating: Cluster, oracle: LLM) -> None:
    """And the worker's counters say what was guessed."""
    name = "spec_decode_num_accepted_tokens_total"
    before = speculating.metric("decode-0", f"baton_{name}", model_name="tiny")
    asking = [Asking(speculating, prompt, 50) for prompt in PROMPTS]
    replies = ask_many(
        speculating, PROMPTS[1], n=3, max_tokens=30, temperature=1.0, seed=4, ignore_eos=True
    )
    for one, prompt in zip(asking, PROMPTS, strict=True):
        assert one.result().token_ids == expect(oracle, prompt, max_tokens=50, temperature=0.0)
    for index, reply in enumerate(replies):
        expected = expect(
            oracle, PROMPTS[1], max_tokens=30, temperature=1.0, seed=4, sample_index=index
        )
        assert reply.token_ids == expected
    speculating.wait_idle()
    after = speculating.metric("decode-0", f"baton_{name}", model_name="tiny")
    first = "baton_spec_decode_num_accepted_tokens_per_pos_total"
    assert after > before
    assert speculating.metric("decode-0", first, position="0") > 0


@pytest.mark.parametrize("wanted", [None, 0])
def test_usage_says_what_was_guessed(speculating: Cluster, wanted: int | None) -> None:
    """Over HTTP, where a request may also ask for none."""
    body: dict[str, Any] = {"model": "tiny", "prompt": PROMPTS[1], "max_tokens": 40}
    body |= {"temperature": 0, "ignore_eos": True, "num_speculative_tokens": wanted}
    reply = httpx.post(f"{speculating.url}/v1/completions", json=body, timeout=30).json()
    usage = reply["usage"]
    assert usage["completion_tokens"] == 40
    if wanted is None:
        assert 0 < usage["num_accepted_tokens"] <= usage["num_draft_tokens"]
    else:
        assert "num_draft_tokens" not in usage
