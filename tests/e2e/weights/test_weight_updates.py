"""Weights that change under load: each answer is of one version, and says of which.

Three updates; `make updates` takes twenty.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from baton_client import Baton
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.e2e.asking import prompt_of
from tests.e2e.conftest import BLOCK_SIZE, ENGINE_FLAGS
from tests.e2e.processes import Cluster, Process
from tests.e2e.weights.cache_follower import CacheFollower
from tests.e2e.weights.training import Trainer, greedy
from tests.e2e.weights.updating import (
    NUM_TOKENS,
    PROMPTS,
    Load,
    ask,
    cached_tokens,
    one_answer,
    post,
    refused,
    version_of,
    wait,
)
from tests.fakes.directory.redis_server import RedisServer
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Of each mode one.
NUM_UPDATES = int(os.environ.get("BATON_UPDATES", "2"))
FIRST = "default"


#: Over half of a host tier's blocks, and more than it holds.
LONG = prompt_of(600, seed=4)
#: Of a block: two layers, keys and values, two heads of 80 floats.
BLOCK_BYTES = 2 * 2 * 2 * 80 * 4 * BLOCK_SIZE
TIER_FLAGS = (
    "--kv-offload-host-gib", str(30 * BLOCK_BYTES / 2**30),
    "--kv-offload-disk-gib", "0.1",
    "--kv-offload-always-load",
)  # fmt: skip
#: Time in which the directory forgets what is gone.
FORGET_S = 5.0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The usual model with 19 MB of weights: enough to see in a process's memory."""
    path = tmp_path_factory.mktemp("models") / "wide"
    spec = CheckpointSpec(
        architecture="qwen3", num_layers=2, hidden_size=96, num_heads=6, num_kv_heads=2,
        head_dim=80, intermediate_size=8_000, vocab_size=321, max_position_embeddings=2048,
        dtype="float32", seed=7,
    )  # fmt: skip
    write_random_checkpoint(path, spec)
    return path


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer | None]:
    """The directory; None where there is no Redis: then it is the router's own."""
    if shutil.which("redis-server") is None:
        yield None
        return
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each worker's disk tier."""
    return tmp_path_factory.mktemp("disks")


@pytest.fixture(scope="module")
def updated(
    checkpoint: Path,
    redis_server: RedisServer | None,
    disks: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """A cluster whose weights the tests change; with all that remembers blocks."""
    redis_url = None if redis_server is None else redis_server.url
    made = Cluster(checkpoint, tmp_path_factory.mktemp("updated"), redis_url=redis_url)
    profiles = str(tmp_path_factory.mktemp("profiles"))
    try:
        for role, *own in (("prefill",), ("decode", "--local-prefill-threshold", "0")):
            name = f"{role}-0"
            made.add_worker(
                role, name, *ENGINE_FLAGS, *TIER_FLAGS, *own,
                "--kv-offload-disk-dir", str(disks / name),
                "--kv-events-endpoint", f"tcp://127.0.0.1:{free_port()}",
                "--kv-events-replay-endpoint", f"tcp://127.0.0.1:{free_port()}",
                "--profiler-dir", profiles,
            )  # fmt: skip
        made.wait_ready()
        yield made
    finally:
        codes = made.stop()
    assert set(codes.values()) == {0}


@pytest.fixture
def followers(updated: Cluster) -> Iterator[dict[str, CacheFollower]]:
    """Subscribers to the events of each worker."""
    made = {}
    for name, process in updated.workers.items():
        at = process.argv.index("--kv-events-endpoint")
        made[name] = CacheFollower(process.argv[at + 1], process.argv[at + 3])
    yield made
    for each in made.values():
        each.close()


def test_each_answer_is_of_the_version_that_it_names(
    updated: Cluster, checkpoint: Path, tmp_path: Path
) -> None:
    trainer = Trainer(checkpoint, tmp_path)
    folders = {FIRST: checkpoint}
    with Load(updated) as load:
        for number in range(NUM_UPDATES):
            version = f"step-{number}"
            folders[version] = trainer.step(version)
            mode = "wait" if number % 2 else "abort"
            done = post(
                updated,
                "/update_weights",
                path=str(folders[version]),
                weight_version=version,
                mode=mode,
            )
            assert set(done["workers"].values()) == {version}
            assert done["lost"] == {}
            with httpx.Client(timeout=60) as client:
                for place, prompt in enumerate(PROMPTS):
                    [choice] = ask(client, updated, prompt)["choices"]
                    load.answers.append((place, choice["token_ids"], choice["weight_version"]))
                    assert choice["weight_version"] == version
    assert load.failures == []
    expected = {name: greedy(path, PROMPTS, NUM_TOKENS) for name, path in folders.items()}
    assert len({str(tokens) for tokens in expected.values()}) == len(folders)
    seen = {version for _, _, version in load.answers}
    assert seen == set(folders)
    for place, tokens, version in load.answers:
        wanted = expected[version][place]
        assert tokens == wanted[: len(tokens)], version
    updated.wait_idle()


def keys_of_blocks(server: RedisServer | None) -> set[bytes]:
    """The names of the directory's sets of blocks: one for each incarnation that has some."""
    if server is None:
        return set()
    with server.client() as client:
        return set(client.keys("*:blocks:*"))


def test_no_block_of_old_weights_is_left_anywhere(
    updated: Cluster,
    checkpoint: Path,
    followers: dict[str, CacheFollower],
    redis_server: RedisServer | None,
    disks: Path,
    tmp_path: Path,
) -> None:
    """Neither in subscribers' minds, nor in Redis, nor on disk; nor is one used."""
    before = cached_tokens(updated, LONG)[1]
    assert cached_tokens(updated, LONG) == (len(LONG) // BLOCK_SIZE * BLOCK_SIZE, before)
    for each in followers.values():
        wait(lambda each=each: each.read() and each.count("GPU") and each.count("CPU"))
    wait(lambda: followers["prefill-0"].read() and followers["prefill-0"].count("STORAGE"))
    keys, files = keys_of_blocks(redis_server), set(disks.rglob("*.kv"))
    assert len(keys) == (0 if redis_server is None else 2)
    assert files
    folder = Trainer(checkpoint, tmp_path).step("clean")
    post(updated, "/update_weights", path=str(folder), weight_version="clean")
    for name, each in followers.items():
        each.read()
        # The canary of the new life may have left a block in the pool.
        assert each.count("GPU") <= 1, name
        assert each.count("STORAGE") == each.count("CPU") == 0, name
    wait(lambda: not keys & keys_of_blocks(redis_server), FORGET_S)
    assert not [path for path in files if path.exists()]
    assert len(list(disks.glob("*/*"))) == len(updated.workers)
    [expected] = greedy(folder, [LONG], NUM_TOKENS)
    assert cached_tokens(updated, LONG) == (0, expected)
    for each in followers.values():
        held = each.read().copy()
        assert held
        again = CacheFollower(*each.endpoints)
        assert again.read() == held
        again.close()


def test_weights_that_one_worker_cannot_load_change_nothing(
    updated: Cluster, tmp_path: Path
) -> None:
    before, version = one_answer(updated), version_of(updated)
    wide = tmp_path / "wide"
    spec = CheckpointSpec(
        architecture="qwen3", num_layers=2, hidden_size=64, num_heads=2, num_kv_heads=2,
        head_dim=32, intermediate_size=64, vocab_size=321, max_position_embeddings=2048,
        dtype="float32", seed=1,
    )  # fmt: skip
    write_random_checkpoint(wide, spec)
    assert "another model" in refused(updated, "/update_weights", path=str(wide))
    assert "decode-0" in refused(updated, "/update_weights", path=str(tmp_path / "nothing"))
    assert "mode" in refused(updated, "/update_weights", path=str(wide), mode="keep")
    assert (one_answer(updated), version_of(updated)) == (before, version)


@pytest.fixture(scope="module")
def whole(updated: Cluster) -> Any:
    """An answer that is long enough to be paused in its midst."""
    return one_answer(updated, max_tokens=400)


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
def test_a_pause_holds_requests_until_they_may_go_on(
    updated: Cluster, mode: str, whole: Any
) -> None:
    running = ThreadPoolExecutor(1).submit(one_answer, updated, max_tokens=400)
    while not httpx.get(f"{updated.url}/load").json()["server_load"]:
        time.sleep(0.005)
    time.sleep(0.05)
    assert post(updated, f"/pause?mode={mode}") == {"status": "paused"}
    assert httpx.get(f"{updated.url}/is_paused").json() == {"is_paused": True}
    waiting = ThreadPoolExecutor(1).submit(one_answer, updated)
    with pytest.raises(TimeoutError):
        waiting.result(0.4)
    assert running.done() == (mode != "keep")
    assert post(updated, "/resume") == {"status": "resumed"}
    assert waiting.result(30)["finish_reason"] == "length"
    answer = running.result(30)
    if mode == "abort":
        assert answer["finish_reason"] == "abort"
        assert answer["token_ids"] == whole["token_ids"][: len(answer["token_ids"])]
    else:
        assert answer == whole
    assert httpx.get(f"{updated.url}/is_paused").json() == {"is_paused": False}
    updated.wait_idle()


def test_what_a_pause_has_stopped_finishes_in_the_next(updated: Cluster, whole: Any) -> None:
    """A request that has just begun may be on its way to the decode worker."""
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(one_answer, updated, max_tokens=400) for _ in range(2)]
        wait(lambda: httpx.get(f"{updated.url}/load").json()["server_load"] == 2)
        post(updated, "/pause?mode=keep")
        assert not any(each.done() for each in running)
        post(updated, "/pause?mode=wait&timeout_s=20")
        assert [each.result(1) for each in running] == [whole, whole]
    post(updated, "/resume")
    updated.wait_idle()


def test_a_profile_is_a_file_per_worker(updated: Cluster) -> None:
    post(updated, "/start_profile", profile_prefix="here")
    assert "already" in refused(updated, "/start_profile")
    one_answer(updated)
    files = post(updated, "/stop_profile")["files"]
    assert set(files) == set(updated.workers)
    for name, path in files.items():
        # Both are in one folder, and may end at the same time.
        assert Path(path).name.startswith(f"here.{name}.")
        events = json.loads(gzip.decompress(Path(path).read_bytes()))["traceEvents"]
        assert "baton: compute" in {event.get("name") for event in events}
    assert "not being profiled" in refused(updated, "/stop_profile")


def rss_of(process: Process) -> int:
    """The memory of a process in bytes."""
    rollup = Path(f"/proc/{process.popen.pid}/smaps_rollup").read_text()
    [line] = [line for line in rollup.splitlines() if line.startswith("Rss:")]
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("level", [1, 2])
def test_sleeping_workers_give_memory_back_and_wake_up_as_they_were(
    updated: Cluster,
    checkpoint: Path,
    followers: dict[str, CacheFollower],
    redis_server: RedisServer | None,
    level: int,
) -> None:
    before = [cached_tokens(updated, prompt)[1] for prompt in (*PROMPTS, LONG)]
    updated.wait_idle()
    weights = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    taken, awake = {}, {}
    for name, process in updated.workers.items():
        followers[name].read()
        num_blocks = followers[name].count("GPU") + followers[name].count("CPU")
        taken[name] = weights + num_blocks * BLOCK_BYTES
        awake[name] = rss_of(process)
    assert post(updated, f"/sleep?level={level}") == {"status": "sleeping", "level": level}
    for name, process in updated.workers.items():
        assert awake[name] - rss_of(process) > 0.9 * taken[name], name
        assert followers[name].read() == set()
    wait(lambda: not keys_of_blocks(redis_server), FORGET_S)
    assert httpx.get(f"{updated.url}/is_sleeping").json() == {"is_sleeping": True}
    assert httpx.get(f"{updated.url}/ready").status_code == 503
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cached_tokens, updated, PROMPTS[0])
        updated.wait_metric("baton_num_requests_waiting", 1)
        assert post(updated, "/wake_up?tags=weights")["status"] == "sleeping"
        assert not waiting.done()
        # From here it may fall asleep again, and that frees the weights, too.
        loaded = {name: rss_of(process) for name, process in updated.workers.items()}
        post(updated, f"/sleep?level={level}")
        for name, process in updated.workers.items():
            assert loaded[name] - rss_of(process) > 0.9 * weights, name
        assert post(updated, "/wake_up?tags=weights")["status"] == "sleeping"
        assert post(updated, "/wake_up?tags=kv_cache")["status"] == "awake"
        assert httpx.get(f"{updated.url}/is_sleeping").json() == {"is_sleeping": False}
        assert waiting.result()[1] == before[0]
    for name, process in updated.workers.items():
        assert rss_of(process) < 1.1 * awake[name], name
    # The disk tier still has it: the weights are the same.
    num_cached, tokens = cached_tokens(updated, LONG)
    assert num_cached > 0
    assert [*(cached_tokens(updated, prompt)[1] for prompt in PROMPTS), tokens] == before
    updated.wait_idle()


def test_a_sleeper_may_be_told_to_wake_up_with_what_is_there(
    updated: Cluster, checkpoint: Path, tmp_path: Path
) -> None:
    trainer = Trainer(checkpoint, tmp_path)
    folder = trainer.step("present")
    post(updated, "/update_weights", path=str(folder))
    post(updated, "/sleep?level=1")
    shutil.copytree(trainer.step("next"), folder, dirs_exist_ok=True)
    assert "has other weights than those that fell asleep" in refused(updated, "/wake_up")
    post(updated, "/sleep?level=2")
    post(updated, "/wake_up")
    assert [one_answer(updated)["token_ids"]] == greedy(folder, PROMPTS[:1], NUM_TOKENS)
    updated.wait_idle()


def restart(cluster: Cluster, name: str) -> None:
    """Start a killed worker again, and wait until it has joined."""
    process = cluster.workers[name]
    num_joined = process.log.read_text().count("registered")
    process.start()
    wait(lambda: process.log.read_text().count("registered") > num_joined)


def test_a_worker_that_is_killed_before_the_commit_leaves_all_on_the_old_version(
    updated: Cluster, checkpoint: Path, tmp_path: Path
) -> None:
    before, version = one_answer(updated), version_of(updated)
    folder = Trainer(checkpoint, tmp_path).step("lost")
    workers = updated.workers.values()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(one_answer, updated, max_tokens=1900)
        wait(lambda: bool(httpx.get(f"{updated.url}/load").json()["server_load"]))
        update = pool.submit(
            refused, updated, "/update_weights", path=str(folder), weight_version="lost"
        )
        # The answer must not end before the kill: its worker is stopped until then.
        decode = psutil.Process(updated.workers["decode-0"].popen.pid)
        wait(lambda: "version=lost" in updated.workers["decode-0"].log.read_text())
        decode.suspend()
        try:
            wait(lambda: all("version=lost" in each.log.read_text() for each in workers))
            updated.workers["prefill-0"].kill()
        finally:
            decode.resume()
        assert "prefill-0" in update.result()
        assert running.result()["weight_version"] == version
    restart(updated, "prefill-0")
    wait(lambda: version_of(updated) == version)
    updated.wait_ready()
    assert one_answer(updated) == before


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """A folder in memory, as a trainer on the same machine leaves its weights there."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_worker_that_starts_with_old_weights_gets_the_new_ones(
    updated: Cluster, checkpoint: Path, shared_memory: Path
) -> None:
    """Of shared memory; when all workers have them, the trainer may write others there."""
    folder = Trainer(checkpoint, shared_memory).step("after")
    post(updated, "/update_weights", path=str(folder), weight_version="after")
    updated.workers["prefill-0"].kill()
    restart(updated, "prefill-0")
    wait(lambda: version_of(updated) == "after")
    updated.wait_ready()
    expected = greedy(folder, PROMPTS, NUM_TOKENS)
    answer = one_answer(updated)
    assert (answer["weight_version"], answer["token_ids"]) == ("after", expected[0])
    with Baton(f"127.0.0.1:{updated.grpc_port}") as baton:
        [said] = baton.generate(PROMPTS[0], max_tokens=NUM_TOKENS, temperature=0.0).answers
    assert said.weight_version == "after"
    for url, body in (
        ("/v1/responses", {"input": "a", "max_output_tokens": 4}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}),
    ):
        reply = httpx.post(f"{updated.url}{url}", json={"model": updated.model.name, **body})
        assert reply.json()["weight_version"] == "after", reply.text
    for path in folder.glob("*.safetensors"):
        path.write_bytes(bytes(path.stat().st_size))
    assert [cached_tokens(updated, prompt)[1] for prompt in PROMPTS] == expected
