"""Workers of ranks, stages, hosts and one process hand over, and fetch each other's prefixes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import urllib.request
from importlib.util import find_spec
from typing import TYPE_CHECKING

import psutil
import pytest
from safetensors.torch import load_file, save_file

from cli.processes import TAIL_LINES, last_error
from shared.engine.llm import LLM
from shared.request.sampling_params import SamplingParams
from tests.e2e.asking import prompt_of
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS
from tests.e2e.hand_off.test_prefix_reuse import Driver
from tests.e2e.oracle import expect
from tests.e2e.processes import Cluster
from tests.e2e.weights.updating import NUM_TOKENS, PROMPTS, one_answer, post
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.processes import Process

#: Of a checkpoint's file.
NAME = "model.safetensors"
TWO = ("--tensor-parallel-size", "2")
STAGES = ("--pipeline-parallel-size", "2", "--attention-backend", "native")
DECODE = ("decode-0", "decode-1", "decode-2", "decode-3")
#: All that the worker of stages knows, so every block that it gets or gives goes by it.
BETWEEN_STAGES = "nixl" if find_spec("nixl") else "shm"


@pytest.fixture(scope="module")
def damage_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damage") / "on"


@pytest.fixture(scope="module")
def driver(
    checkpoint: Path, damage_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    """A prefill worker of two ranks; decode workers of one, two, two stages, and two hosts."""
    patch = pytest.MonkeyPatch()
    patch.setenv("UCX_NET_DEVICES", "lo")
    cluster = Cluster(checkpoint, tmp_path_factory.mktemp("ranks"))
    reuse = ("--reuse-policy", "always", "--reuse-patience-ms", "20000")
    connectors = ",".join(dict.fromkeys(("shm", "zmq", BETWEEN_STAGES)))
    flags = (*ENGINE_FLAGS, *reuse, "--connectors", connectors)
    decode = (*flags, "--local-prefill-threshold", "0", "--metrics-port")
    try:
        cluster.add_worker("prefill", "prefill-0", *flags, *TWO)
        cluster.add_worker("decode", "decode-0", *decode, str(free_port()))
        other = (*decode, str(free_port()), *TWO, "--connectors", "zmq")
        cluster.add_worker("decode", "decode-1", *other, damage_file=damage_file)
        stages = (*decode, str(free_port()), *STAGES, "--connectors", BETWEEN_STAGES)
        cluster.add_worker("decode", "decode-2", *stages)
        hosts = (*TWO, "--nnodes", "2", "--master-port", str(free_port()), "--connectors", "zmq")
        cluster.add_worker("decode", "decode-3", *decode, str(free_port()), *hosts)
        own = ("--host", "127.0.0.2", "--metrics-port", str(free_port()))
        cluster.add_node("decode-3", 1, *flags, *hosts, *own)
        cluster.wait_ready(num_prefill=1, num_decode=len(DECODE))
        yield Driver(cluster)
    finally:
        codes = cluster.stop()
        patch.undo()
    assert set(codes.values()) == {0}


def cluster_flag(process: Process, name: str) -> str:
    return process.argv[process.argv.index(name) + 1]


def test_hand_offs_and_prefixes_between_workers_of_two_sizes(
    driver: Driver, oracle: LLM, damage_file: Path
) -> None:
    for number, decode in enumerate(DECODE):
        # Of several steps, so that blocks leave while others are computed.
        prompt = prompt_of(150 + number, seed=70)
        reply = driver.ask(decode, prompt, prefill=["prefill-0"])
        assert reply.token_ids == expect(oracle, prompt, max_tokens=12, temperature=0.0)
        assert reply.timings.prefill_worker == "prefill-0"
        assert reply.timings.connector == ("shm", "zmq", BETWEEN_STAGES, "zmq")[number]
        # The decode worker's own prefix, which the prefill worker lacks, goes back to it.
        driver.forget("prefill-0")
        again = [*prompt, *reply.token_ids, *prompt_of(30, seed=71)]
        reply = driver.ask(decode, again, prefill=["prefill-0"])
        assert reply.token_ids == expect(oracle, again, max_tokens=12, temperature=0.0)
        assert reply.timings.prefill_worker == "prefill-0"
        assert reply.timings.prefix_source == decode
    # A prefix of the worker of one rank, for that of two; and back.
    pairs = [pair for other in DECODE[1:] for pair in ((DECODE[0], other), (other, DECODE[0]))]
    for seed, (holder, taker) in enumerate(pairs, 8):
        prompt = prompt_of(6 * BLOCK_SIZE + 3, seed=seed)
        driver.ask(holder, prompt)
        reply = driver.ask(taker, prompt, sources=[(holder, 6)])
        assert reply.token_ids == expect(oracle, prompt, max_tokens=12, temperature=0.0)
        assert reply.sources == (3, 0, 6 * BLOCK_SIZE, 6 * BLOCK_SIZE)
        assert reply.timings.prefix_source == holder
    # A prompt of a worker of one rank, for the one on two hosts.
    prompt = prompt_of(140, seed=74)
    reply = driver.ask("decode-3", prompt, prefill=["decode-0"])
    assert reply.token_ids == expect(oracle, prompt, max_tokens=12, temperature=0.0)
    assert reply.timings.prefill_worker == "decode-0"
    # A host without a worker's services tells of its ranks.
    own = cluster_flag(driver.cluster.nodes["decode-3-host-1"], "--metrics-port")
    with urllib.request.urlopen(f"http://127.0.0.2:{own}/health", timeout=10) as response:
        assert 'baton_rank_resident_bytes{model_name="' in (page := response.read().decode())
        assert 'rank="1"' in page
    # One bit in one stream of two, and the prompt is computed where it was to arrive.
    damage_file.touch()
    prompt = prompt_of(90, seed=72)
    reply = driver.ask("decode-1", prompt, prefill=["prefill-0"])
    damage_file.unlink()
    assert reply.token_ids == expect(oracle, prompt, max_tokens=12, temperature=0.0)
    assert reply.timings.prefill_worker == ""
    refusals = {"connector": "zmq", "reason": "corrupt"}
    assert driver.cluster.metric("decode-1", "baton_kv_transfer_refusals_total", **refusals) == 1
    prompt = prompt_of(91, seed=72)
    assert driver.ask("decode-1", prompt, prefill=["prefill-0"]).timings.prefill_worker
    driver.cluster.wait_idle()


def test_ranks_take_other_weights_beside_an_engine_and_sleep(
    driver: Driver, checkpoint: Path, tmp_path: Path
) -> None:
    """Every worker answers as one engine with the weights that it has."""
    cluster, prompt = driver.cluster, PROMPTS[2]
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    tensors = load_file(other / NAME)
    save_file({name: each.flip(0).contiguous() for name, each in tensors.items()}, other / NAME)
    wanted = {}
    for folder in (checkpoint, other):
        llm = LLM(folder, dtype="float32", num_blocks=64)
        [output] = llm.generate(
            [list(prompt)], SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
        )
        wanted[folder] = list(output.outputs[0].token_ids)
        llm.close()
    assert wanted[checkpoint] != wanted[other]

    def answers() -> list[list[int]]:
        """By each decode worker: the least busy one is asked."""
        return [one_answer(cluster, prompt)["token_ids"] for _ in DECODE]

    assert answers() == [wanted[checkpoint]] * len(DECODE)
    done = post(cluster, "/update_weights", path=str(other), weight_version="other", mode="wait")
    assert done["lost"] == {}
    assert answers() == [wanted[other]] * len(DECODE)
    post(cluster, "/sleep?level=1")
    post(cluster, "/wake_up")
    assert answers() == [wanted[other]] * len(DECODE)
    post(cluster, "/update_weights", path=str(checkpoint), weight_version="first", mode="abort")
    assert answers() == [wanted[checkpoint]] * len(DECODE)
    cluster.wait_idle()


def follower_of(worker: Process) -> psutil.Process:
    """Rank 1: a copy, which is not the worker's child but ends with it, see `warm_process`."""
    [pid] = set(re.findall(r"ranks_loaded .*pids=\((\d+),\)", worker.log.read_text()))
    return psutil.Process(int(pid))


def test_a_worker_without_a_rank_ends_and_says_why(driver: Driver) -> None:
    """Its supervisor starts it again, as any worker that ends with an error."""
    worker = driver.cluster.workers["decode-1"]
    os.kill(follower_of(worker).pid, signal.SIGKILL)
    assert worker.popen.wait(30) == 1
    # What `baton up` shows.
    reason = last_error(worker.log.read_text().splitlines()[-TAIL_LINES:])
    assert "rank 1 ended by SIGKILL" in reason
    del driver.cluster.workers["decode-1"]
    # The others do not need it.
    assert driver.ask("decode-0", prompt_of(40, seed=73)).token_ids
    # Nor does a rank outlive its worker, and be it stopped.
    worker = driver.cluster.workers.pop("prefill-0")
    follower = follower_of(worker)
    follower.suspend()
    worker.kill()
    assert psutil.wait_procs([follower], timeout=10)[1] == []
