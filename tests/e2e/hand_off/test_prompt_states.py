"""Hidden states of prompts between real processes: what a head guesses, and what is left over.

The target counts, and so does the head, which reads the state of the last token of the prompt.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from baton.v1 import common_pb2, router_pb2
from shared.engine.llm import LLM
from shared.model.random_tokenizer import write_tokenizer
from shared.request.sampling_params import SamplingParams
from tests.e2e.asking import GREEDY, TIMEOUT_S, ask, until
from tests.e2e.conftest import ENGINE_FLAGS, STALL_S, add_decode
from tests.e2e.processes import Cluster
from tests.fakes.checkpoints import counting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VOCAB = 320
#: Each is sent in several pieces.
LENGTHS = (3, 60, 100, 200, 400)
NUM_TOKENS = 16


def count_from(prompt: list[int], num: int) -> tuple[int, ...]:
    return tuple((prompt[-1] + 1 + i) % VOCAB for i in range(num))


def prompt_of(length: int, seed: int) -> list[int]:
    return [(7 * i * i + seed) % VOCAB for i in range(length)]


@pytest.fixture(scope="module", params=["eagle3", "mtp"])
def method(request: pytest.FixtureRequest) -> str:
    """A head with files of its own, and one in the target's."""
    return str(request.param)


@pytest.fixture(scope="module")
def folder(method: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counting")
    if method == "mtp":
        counting.write_counting_mtp(path / "target", VOCAB)
    else:
        counting.write_counting_target(path / "target", VOCAB)
        counting.write_counting_eagle3(path / method, VOCAB)
    write_tokenizer(path / "target", VOCAB, 512)
    return path


@pytest.fixture(scope="module")
def settings(method: str, folder: Path) -> dict[str, Any]:
    own = {} if method == "mtp" else {"model": str(folder / method)}
    return {
        "method": method,
        **own,
        "num_speculative_tokens": 3,
        "adaptive": False,
        "hand_off": "transfer",
    }


@pytest.fixture(scope="module")
def counting_cluster(folder: Path, settings: dict[str, Any]) -> Iterator[Cluster]:
    """Two prefill workers, of which the last test kills one; they are asked in turn."""
    flags = ("--routing-policy", "round-robin")
    cluster = Cluster(folder / "target", folder, router_flags=flags)
    try:
        for name in ("prefill-0", "prefill-1"):
            cluster.add_worker("prefill", name, *ENGINE_FLAGS)
        # The head reads no more in a step: with less it would begin to guess some steps later.
        flags = ("--max-num-batched-tokens", "512")
        add_decode(cluster, "decode-0", *flags, "--speculative-config", json.dumps(settings))
        cluster.wait_ready(num_prefill=2)
        yield cluster
    finally:
        codes = cluster.stop()
    assert set(codes.values()) == {0}


def received(cluster: Cluster) -> float:
    return cluster.metric("decode-0", "baton_hand_off_states_total", outcome="received")


def test_as_much_is_accepted_as_in_one_process(
    counting_cluster: Cluster, folder: Path, method: str, settings: dict[str, Any]
) -> None:
    """Guesses begin with the first token that is decoded, and none of them is worse."""
    llm = LLM(
        folder / "target", dtype="float32", block_size=16, num_blocks=64, max_num_batched_tokens=64,
        speculative_config=settings,
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    names = [f"spec_decode_num_{what}_tokens" for what in ("draft", "accepted")]
    for seed, length in enumerate(LENGTHS):
        prompt = prompt_of(length, seed)
        before = [llm.engine.stats().counters.get(name, 0) for name in names]
        [alone] = llm.generate([prompt], sampling)
        after = [llm.engine.stats().counters[name] for name in names]
        reply = ask(counting_cluster, prompt, max_tokens=NUM_TOKENS, **GREEDY)
        assert reply.token_ids == tuple(alone.outputs[0].token_ids)
        assert reply.token_ids == count_from(prompt, NUM_TOKENS)
        usage = reply.usage
        counted = [usage.num_draft_tokens, usage.num_accepted_tokens]
        assert counted == [new - old for old, new in zip(before, after, strict=True)]
        assert usage.num_accepted_tokens > 0
        assert method == "eagle3" or counted[0] == counted[1]
    assert received(counting_cluster) == len(LENGTHS)
    counting_cluster.wait_idle()


def test_nothing_is_left_of_mixed_requests(counting_cluster: Cluster) -> None:
    """At the same time, drawn and not, with prefixes in caches; every third is cancelled."""

    def run(index: int) -> None:
        prompt = prompt_of(LENGTHS[index % 5], index % 3)
        params: dict[str, Any] = {"temperature": 0.1 * (index % 2), "seed": index}
        params |= {"max_tokens": 60, "ignore_eos": True}
        request = router_pb2.GenerateRequest(
            prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt)),
            params=router_pb2.GenerationParams(**params),
        )
        call = counting_cluster.router_stub().Generate(request, timeout=TIMEOUT_S)
        token_ids: list[int] = []
        try:
            for num_pieces, piece in enumerate(call):
                token_ids += piece.token_ids
                if index % 3 == 0 and num_pieces >= index // 6:
                    call.cancel()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise
        assert tuple(token_ids) == count_from(prompt, 60)[: len(token_ids)]
        assert index % 3 == 0 or len(token_ids) == 60

    before = received(counting_cluster)
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(run, range(20)))
    assert received(counting_cluster) > before
    counting_cluster.wait_idle()


def test_a_prefill_worker_is_killed_while_it_sends(counting_cluster: Cluster) -> None:
    prompts = [prompt_of(420, 40 + i) for i in range(12)]

    def answer(prompt: list[int]) -> tuple[int, ...]:
        return ask(counting_cluster, prompt, max_tokens=NUM_TOKENS, **GREEDY).token_ids

    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = pool.map(answer, prompts)
        until(lambda: counting_cluster.load("prefill-0").num_open_transfers > 0)
        counting_cluster.workers.pop("prefill-0").kill()
        assert list(answers) == [count_from(prompt, NUM_TOKENS) for prompt in prompts]
    counting_cluster.wait_idle(timeout_s=5 + STALL_S)
