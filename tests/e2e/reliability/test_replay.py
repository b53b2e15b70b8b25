"""A decode worker is lost in the middle of streams, and no answer shows it."""

from __future__ import annotations

import json
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from baton.v1 import common_pb2
from tests.e2e.asking import prompt_of
from tests.e2e.conftest import ALLOWED, ENGINE_FLAGS
from tests.e2e.processes import Cluster, is_idle
from tests.e2e.stream import NUM_TOKENS, WAIT_S, Stream, check, late_stop, read_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shared.engine.llm import LLM

#: So many has everybody before something happens.
NUM_BEFORE = 12
DECODE = ("decode-0", "decode-1")

#: The prompt is sent as the embeddings of its tokens.
EMBEDS = "embeddings"
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy again": {"temperature": 0.0, "logprobs": 2},
    "seeded": {"temperature": 0.9, "top_p": 0.9, "seed": 7},
    "seeded, several, with hidden states": {
        "temperature": 1.0,
        "seed": 8,
        "n": 2,
        "return_hidden_states": True,
    },
    "penalties": {
        "temperature": 0.8,
        "seed": 9,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "min_tokens": 100,
    },
    "grammar": {
        "temperature": 1.0,
        "seed": 12,
        "grammar": {"kind": common_pb2.GRAMMAR_KIND_REGEX, "text": "([a-z]{7} ){30}"},
    },
    "stop string": {"temperature": 0.0, "stop": "late"},
    "stop string, seeded": {"temperature": 0.9, "seed": 10, "stop": "late"},
    EMBEDS: {"temperature": 0.9, "seed": 13},
}


def streams_for(oracle: LLM) -> list[Stream]:
    made = []
    for number, (name, params) in enumerate(ASKED.items()):
        stream = Stream(name, prompt_of(40 + number, seed=60 + number), dict(params))
        stream.gives_embeds = name == EMBEDS
        if "stop" in params:
            stream.params["stop"] = late_stop(oracle, stream)
        made.append(stream)
    return made


def read_sse(cluster: Cluster) -> Callable[[Stream], None]:
    def read(stream: Stream) -> None:
        body = {
            "model": cluster.model.name, "prompt": stream.prompt, "stream": True,
            "max_tokens": NUM_TOKENS, "ignore_eos": True, **stream.params,
        }  # fmt: skip
        url = f"{cluster.url}/v1/completions"
        with (
            httpx.Client(trust_env=False, verify=False, timeout=WAIT_S) as http,
            http.stream("POST", url, json=body) as reply,
        ):
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                stream.texts[0] = stream.texts.get(0, "") + event["choices"][0]["text"]
                stream.num_seen += 1

    return read


def metrics(cluster: Cluster) -> str:
    # Without a TLS context, which takes longer to make than the answer.
    url = f"{cluster.url}/metrics"
    return httpx.get(url, trust_env=False, verify=False, timeout=WAIT_S).text


def num_replays(cluster: Cluster) -> dict[str, int]:
    pattern = r'^baton_router_replays_total{.*reason="(\w+)"} ([\d.]+)$'
    found = re.findall(pattern, metrics(cluster), re.MULTILINE)
    return {reason: int(float(count)) for reason, count in found}


def num_ready(cluster: Cluster) -> int:
    found = re.search(
        r'^baton_workers_ready{.*role="decode"} ([\d.]+)$', metrics(cluster), re.MULTILINE
    )
    return int(float(found[1])) if found else 0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never: {what}"
        time.sleep(0.005)


@pytest.fixture
def two_decode(checkpoint: Path, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(checkpoint, tmp_path, router_flags=ALLOWED)
    try:
        flags = (*ENGINE_FLAGS, *ALLOWED)
        cluster.add_worker("prefill", "prefill-0", *flags)
        for name in DECODE:
            cluster.add_worker("decode", name, *flags, "--local-prefill-threshold", "0")
        cluster.wait_ready(num_decode=2)
        yield cluster
    finally:
        cluster.stop()


def warm_up(cluster: Cluster) -> None:
    """A worker's first grammar takes it a second, in which all other streams would end."""
    first = [Stream("grammar", prompt_of(30, seed=90 + i), ASKED["grammar"]) for i in range(4)]
    for stream in first:
        stream.start(read_grpc(cluster))
    for stream in first:
        assert stream.thread is not None
        stream.thread.join(WAIT_S)
        assert stream.error is None


def run_through(cluster: Cluster, oracle: LLM, fault: signal.Signals) -> str:
    """Ten streams, the fault when all of them have begun, and every answer is the oracle's.

    It strikes the decode worker that has most of them; returns its name.
    """
    before = sum(num_replays(cluster).values())
    streams = streams_for(oracle)
    for stream in streams:
        stream.start(read_grpc(cluster))
    over_http = Stream("sse", prompt_of(50, seed=70), {"temperature": 0.9, "seed": 11})
    over_http.start(read_sse(cluster))
    streams.append(over_http)
    until(
        lambda: all(s.num_seen >= NUM_BEFORE or s.error for s in streams), "all streams have begun"
    )
    victim = max(DECODE, key=lambda name: cluster.load(name).num_running)
    assert cluster.load(victim).num_running > 0
    cluster.workers[victim].popen.send_signal(fault)
    for stream in streams:
        assert stream.thread is not None
        stream.thread.join(WAIT_S)
        check(oracle, stream)
    assert sum(num_replays(cluster).values()) > before
    return victim


def test_a_stopped_and_a_killed_decode_worker_cost_no_answer(
    two_decode: Cluster, oracle: LLM
) -> None:
    """I9: tokens, texts, log probabilities, rows and usage are what they would have been."""
    warm_up(two_decode)
    stopped = run_through(two_decode, oracle, signal.SIGSTOP)
    assert num_replays(two_decode)["silent"] > 0
    assert all(is_idle(two_decode.load(name)) for name in DECODE if name != stopped)
    two_decode.workers[stopped].popen.send_signal(signal.SIGCONT)
    two_decode.wait_idle(timeout_s=20)
    until(lambda: num_ready(two_decode) == 2, "the router takes it back")
    killed = run_through(two_decode, oracle, signal.SIGKILL)
    two_decode.workers.pop(killed).kill()
    two_decode.wait_idle(timeout_s=20)
