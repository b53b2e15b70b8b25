"""I11 across the hand-off: decode workers with each kind of draft answer as one engine without,
also those that go on with an answer whose worker was killed.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from baton.v1 import common_pb2
from shared.model.drafts.random_heads import HeadSpec, write_random_head
from tests.e2e.asking import ask, prompt_of, until
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster
from tests.e2e.stream import WAIT_S, Stream, check, read_grpc
from tests.fakes.servers.ports import free_port
from tests.unit.model.checkpoints import edit_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.engine.llm import LLM

METHODS = ("draft_model", "eagle", "eagle3", "medusa")
NGRAM = "ngram"
#: They read hidden states of the prompt, which the prefill worker sends.
HEADS = ("eagle", "eagle3")
#: One of the thoughts ends before these do, and one does not.
NUM_TOKENS = 104
DRAFTS = "baton_spec_decode_num_drafts_total"
#: So often has a worker guessed for these streams before it is killed.
NUM_BEFORE = 4
LIST = {
    "type": "array",
    "items": {"type": "string", "minLength": 6, "maxLength": 9},
    "minItems": 60,
}
JSON = {"kind": common_pb2.GRAMMAR_KIND_JSON_SCHEMA, "text": json.dumps(LIST)}
#: Any tokens will do as marks; a bias makes random weights close the thought.
THINKING = {"begin_token_id": 40, "end_token_id": 41, "is_open": True}
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 1},
    "seeded": {"temperature": 0.9, "top_p": 0.9, "seed": 5},
    "seeded, several": {"temperature": 1.0, "seed": 6, "n": 2},
    "greedy json": {"temperature": 0.0, "grammar": JSON},
    "seeded json behind a thought": {
        "temperature": 1.0,
        "seed": 7,
        "grammar": JSON | {"thinking": THINKING},
        "logit_bias": {41: 2.0},
    },
}


@pytest.fixture(scope="module")
def drafting(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One prefill worker, and a decode worker for each method. The draft model is the target.

    The last test kills two of them.
    """
    folder = tmp_path_factory.mktemp("drafting")
    # Costs would keep requests from the slowest ones.
    cluster = Cluster(checkpoint, folder, router_flags=("--routing-policy", "round-robin"))
    try:
        cluster.add_worker("prefill", "prefill-0", *ENGINE_FLAGS)
        for method in (*METHODS, NGRAM):
            model = checkpoint
            if method not in ("draft_model", NGRAM):
                model = folder / method
                write_random_head(model, checkpoint, HeadSpec(method=method))
            if method == "eagle3":
                # Of two layers there are no low, middle and high ones.
                edit_json(model / "config.json", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
            settings = {"method": method, "num_speculative_tokens": 3}
            settings |= {"prompt_lookup_min": 1} if method == NGRAM else {"model": str(model)}
            if method in HEADS:
                settings["hand_off"] = "transfer"
            cluster.add_worker(
                "decode", method, *ENGINE_FLAGS, "--local-prefill-threshold", "0",
                "--metrics-port", str(free_port()),
                "--speculative-config", json.dumps({**settings, "adaptive": False}),
            )  # fmt: skip
        cluster.wait_ready(num_decode=len(METHODS) + 1)
        yield cluster
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}


def test_answers_are_those_of_one_engine(drafting: Cluster, oracle: LLM) -> None:
    # Each worker gets three: less than three are drawn, so that each has a greedy one.
    asked: list[tuple[list[int], dict[str, Any]]] = [
        (
            prompt_of(5 + 23 * i, seed=i),
            {"max_tokens": 24, "temperature": 0.9 * (i % 7 == 3), "seed": i},
        )
        for i in range(15)
    ]

    def answer(one: tuple[list[int], dict[str, Any]]) -> tuple[int, ...]:
        return ask(drafting, one[0], ignore_eos=True, **one[1]).token_ids

    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(answer, asked))
    assert answers == [expect(oracle, prompt, **params) for prompt, params in asked]
    drafting.wait_idle()
    counted = {
        (method, what): drafting.metric(method, f"baton_spec_decode_num_{what}_total")
        for method in METHODS
        for what in ("drafts", "draft_tokens", "accepted_tokens")
    }
    assert all(counted[method, "drafts"] > 0 for method in METHODS)
    for head in HEADS:
        assert drafting.metric(head, "baton_hand_off_states_total", outcome="received") == 3
    # The draft is the target: whatever is drafted for a greedy sequence is right.
    assert counted["draft_model", "accepted_tokens"] > 0


def test_guesses_go_on_where_a_worker_was_killed(drafting: Cluster, oracle: LLM) -> None:
    """Token by token, drawn and in a grammar; whoever goes on guesses in its own way."""
    read = read_grpc(drafting)
    # A worker's first grammar takes it a second, in which all other streams would end.
    warm = [Stream("warm", prompt_of(30, seed=i), {"grammar": JSON}) for i in range(10)]
    for stream in warm:
        stream.params["max_tokens"] = 4
        stream.start(read)
    for stream in warm:
        assert stream.thread is not None
        stream.thread.join(WAIT_S)
    first = kill_one(drafting, "draft_model")
    for stream in first:
        check(oracle, stream)
    second = kill_one(drafting, NGRAM)
    assert [(s.token_ids, s.texts) for s in second] == [(s.token_ids, s.texts) for s in first]
    drafting.wait_idle(timeout_s=20)


def kill_one(cluster: Cluster, victim: str) -> list[Stream]:
    """In the midst of its streams; the streams at their ends."""
    read = read_grpc(cluster)
    num_before = cluster.metric(victim, DRAFTS)
    streams = [
        Stream(name, prompt_of(30 + i, seed=i), {"max_tokens": NUM_TOKENS} | asked)
        for i, (name, asked) in enumerate([*ASKED.items(), *ASKED.items()])
    ]
    for stream in streams:
        stream.start(read)
    # Not until all have begun: those of a quick worker would be over by then.
    until(lambda: cluster.metric(victim, DRAFTS) >= num_before + NUM_BEFORE)
    cluster.workers.pop(victim).kill()
    for stream in streams:
        assert stream.thread is not None
        stream.thread.join(WAIT_S)
        assert stream.error is None, (stream.name, stream.error)
    assert any(stream.usage is not None and stream.usage.num_replays for stream in streams)
    return streams
