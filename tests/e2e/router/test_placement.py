"""Each prompt is computed where it costs least: what the explanation says is what happens."""

from __future__ import annotations

import json
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from baton.v1 import (
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    router_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from shared.request.sampling_params import SamplingParams
from shared.request.wire import sampling_to_wire
from tests.e2e.asking import GREEDY, TIMEOUT_S, Reply, ask, prompt_of, until
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.engine.llm import LLM

NUM_STREAMS = 8
#: Longer answers can be written by the decode worker alone.
SHORT_CONTEXT = 700


@pytest.fixture(scope="module")
def elastic(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(checkpoint, tmp_path_factory.mktemp("placement"), placement="elastic")
    try:
        flags = (*ENGINE_FLAGS, "--connectors", "shm", "--num-blocks", "1024")
        for role, context in (("prefill", SHORT_CONTEXT), ("decode", 2048)):
            own = ("--max-model-len", str(context), "--metrics-port", str(free_port()))
            cluster.add_worker(role, f"{role}-0", *flags, *own)
        cluster.wait_ready()
        yield cluster
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}


def _explain(cluster: Cluster, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{cluster.url}/v1/route",
        json.dumps({"prompt": prompt, "max_tokens": max_tokens}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        explanation: dict[str, Any] = json.load(response)
    return explanation


def _places(reply: Reply) -> tuple[str, str]:
    """The workers that computed and wrote it."""
    timings = reply.timings
    return timings.prefill_worker or timings.decode_worker, timings.decode_worker


def test_a_lone_prompt_is_computed_where_the_explanation_says(
    elastic: Cluster, oracle: LLM
) -> None:
    for seed in range(3):
        prompt = prompt_of(300, seed=seed)
        best = _explain(elastic, prompt, 4)["placements"][0]
        reply = ask(elastic, prompt, max_tokens=4, **GREEDY)
        assert reply.token_ids == expect(oracle, prompt, max_tokens=4, temperature=0.0)
        assert _places(reply) == (best["prefill"], best["decode"])
        place = "local_chosen" if best["place"] == "here" else "remote"
        assert reply.timings.prefill_place == place
        assert elastic.metric(best["decode"], "baton_prefill_place_total", place=place) > 0
        elastic.wait_idle()


def test_the_next_turn_computes_what_is_new(elastic: Cluster, oracle: LLM) -> None:
    """It stays where its blocks are, or they follow it: two alike differ by noise.

    `unit/router/routing/test_places` has the choice with given speeds.
    """
    prompt = prompt_of(500, seed=9)
    first = ask(elastic, prompt, max_tokens=20, **GREEDY)
    home = first.timings.decode_worker
    prompt = [*prompt, *first.token_ids, *prompt_of(40, seed=10)]
    until(lambda: _held(elastic, prompt, home) >= 496)
    second = ask(elastic, prompt, max_tokens=4, **GREEDY)
    assert second.token_ids == expect(oracle, prompt, max_tokens=4, temperature=0.0)
    sources = second.usage.sources
    assert 496 <= second.usage.cached_tokens <= 520
    if _places(second) == (home, home):
        assert second.timings.prefill_place == "local_chosen"
        assert sources.local_hit == second.usage.cached_tokens
        # Far more than a decode worker's threshold is left: milliseconds decide.
        assert sources.computed > 16
    else:
        assert sources.local_hit + sources.transferred_hit == second.usage.cached_tokens


def _held(cluster: Cluster, prompt: list[int], worker: str) -> int:
    candidates = _explain(cluster, prompt, 4)["prefill"]["candidates"]
    candidates += _explain(cluster, prompt, 4)["decode"]["candidates"]
    return max((c["num_held_tokens"] for c in candidates if c["worker"] == worker), default=0)


@pytest.mark.parametrize("num_handed", [32, 304, 499])
def test_a_split_prompt_has_the_same_answer(elastic: Cluster, oracle: LLM, num_handed: int) -> None:
    """The beginning is computed by the prefill worker, the rest by the decode worker."""
    prompt = prompt_of(500, seed=30 + num_handed)
    with grpc.insecure_channel(elastic.addresses["prefill-0"]) as channel:
        info = worker_pb2_grpc.WorkerStub(channel).GetInfo(worker_pb2.GetInfoRequest(), timeout=10)
    request = decode_pb2.DecodeRequest(
        request_id=f"split-{num_handed}",
        token_ids=prompt,
        sampling=sampling_to_wire(SamplingParams(temperature=0.0, max_tokens=8)),
        prefill_candidates=[
            decode_pb2.PrefillCandidate(
                worker=info.peer.worker, address=elastic.addresses["prefill-0"]
            )
        ],
        num_handed_tokens=num_handed,
    )
    with grpc.insecure_channel(elastic.addresses["decode-0"]) as channel:
        pieces = list(decode_pb2_grpc.DecodeStub(channel).Generate(request, timeout=TIMEOUT_S))
    token_ids = [token for piece in pieces for token in piece.token_ids]
    assert tuple(token_ids) == expect(oracle, prompt, max_tokens=8, temperature=0.0)
    sources, timings = pieces[-1].usage.sources, pieces[-1].timings
    # Whole blocks are handed over.
    num_handed -= num_handed % 16
    assert (sources.transferred, sources.computed) == (num_handed, 500 - num_handed)
    assert (timings.prefill_place, timings.prefill_worker) == ("split", "prefill-0")
    elastic.wait_idle()


def test_a_prompt_is_not_computed_beside_many_answers(elastic: Cluster, oracle: LLM) -> None:
    streams = [_Stream(elastic, seed) for seed in range(NUM_STREAMS)]
    try:
        until(lambda: all(s.num_pieces > 1 for s in streams))
        prompt = prompt_of(600, seed=20)
        placements = _explain(elastic, prompt, 4)["placements"]
        beside = next(p for p in placements if p["prefill"] == p["decode"] == "decode-0")
        assert beside["terms_ms"]["harm"] > 0
        reply = ask(elastic, prompt, max_tokens=4, **GREEDY)
        assert all(not s.is_over for s in streams)
    finally:
        for stream in streams:
            stream.cancel()
    assert _places(reply)[0] == "prefill-0"
    assert reply.token_ids == expect(oracle, prompt, max_tokens=4, temperature=0.0)
    elastic.wait_idle()


class _Stream:
    """A long answer in a thread of its own."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.num_pieces = 0
        self.is_over = False
        request = router_pb2.GenerateRequest(
            prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt_of(10, seed=seed))),
            params=router_pb2.GenerationParams(max_tokens=1500, **GREEDY),  # type: ignore[arg-type]
        )
        self._call = cluster.router_stub().Generate(request, timeout=TIMEOUT_S)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for _ in self._call:
                self.num_pieces += 1
        except Exception:  # noqa: BLE001 cancelled
            pass
        self.is_over = True

    def cancel(self) -> None:
        self._call.cancel()
        self._thread.join()
