"""Weights that change under load: each answer is of one version, and says of which.

Three updates; `make updates` takes twenty.
"""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from baton_client import Baton
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.e2e.asking import prompt_of
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.processes import Cluster
from tests.e2e.training import Trainer, greedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUM_UPDATES = int(os.environ.get("BATON_UPDATES", "3"))
NUM_TOKENS = 6
#: More than a block each, and the second begins as the first.
PROMPTS = (
    prompt_of(40, seed=1),
    prompt_of(40, seed=1) + prompt_of(20, seed=2),
    prompt_of(70, seed=3),
)
FIRST = "default"


@pytest.fixture(scope="module")
def updated(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose weights the tests change."""
    made = Cluster(checkpoint, tmp_path_factory.mktemp("updated"))
    try:
        flags = (*ENGINE_FLAGS, "--profiler-dir", str(tmp_path_factory.mktemp("profiles")))
        made.add_worker("prefill", "prefill-0", *flags)
        made.add_worker("decode", "decode-0", *flags, "--local-prefill-threshold", "0")
        made.wait_ready()
        yield made
    finally:
        codes = made.stop()
    assert set(codes.values()) == {0}


class Load:
    """Clients that ask the same prompts again and again."""

    def __init__(self, cluster: Cluster, num_clients: int = 2) -> None:
        self._cluster = cluster
        self._stopped = threading.Event()
        self.answers: list[tuple[int, list[int], str]] = []
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(num_clients)]

    def __enter__(self) -> Load:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for each in self._threads:
            each.join()

    def _run(self, first: int) -> None:
        with httpx.Client(timeout=60) as client:
            number = first
            while not self._stopped.is_set():
                number += 1
                place = number % len(PROMPTS)
                reply = ask(client, self._cluster, PROMPTS[place])
                if "choices" not in reply:
                    self.failures.append(str(reply))
                    continue
                [choice] = reply["choices"]
                self.answers.append((place, choice["token_ids"], choice["weight_version"]))


def ask(client: httpx.Client, cluster: Cluster, prompt: tuple[int, ...], **more: Any) -> Any:
    body = {
        "model": cluster.model.name,
        "prompt": list(prompt),
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }
    return client.post(f"{cluster.url}/v1/completions", json=body).json()


def post(cluster: Cluster, door: str, **body: Any) -> Any:
    reply = httpx.post(f"{cluster.url}{door}", json=body or None, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply.json()


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


def version_of(cluster: Cluster) -> str | None:
    found: str | None = httpx.get(f"{cluster.url}/weight_info").json()["weight_version"]
    return found


def one_answer(cluster: Cluster, prompt: tuple[int, ...] = PROMPTS[0], **more: Any) -> Any:
    with httpx.Client(timeout=60) as client:
        [choice] = ask(client, cluster, prompt, **more)["choices"]
        return choice


def refused(cluster: Cluster, door: str, **body: Any) -> str:
    reply = httpx.post(f"{cluster.url}{door}", json=body or None, timeout=60)
    assert reply.status_code >= 400
    return str(reply.json()["error"]["message"])


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


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
def test_a_pause_holds_requests_until_they_may_go_on(updated: Cluster, mode: str) -> None:
    whole = one_answer(updated, max_tokens=400)
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


def test_a_profile_is_a_file_per_worker(updated: Cluster) -> None:
    post(updated, "/start_profile", profile_prefix="here")
    assert "already" in refused(updated, "/start_profile")
    one_answer(updated)
    files = post(updated, "/stop_profile")["files"]
    assert set(files) == set(updated.workers)
    for path in files.values():
        events = json.loads(gzip.decompress(Path(path).read_bytes()))["traceEvents"]
        assert "baton: compute" in {event.get("name") for event in events}
    assert "not being profiled" in refused(updated, "/stop_profile")


def test_sleeping_workers_say_so_and_wake_up_as_they_were(updated: Cluster) -> None:
    before = one_answer(updated)
    assert post(updated, "/sleep?level=1") == {"status": "sleeping", "level": 1}
    assert httpx.get(f"{updated.url}/is_sleeping").json() == {"is_sleeping": True}
    assert httpx.get(f"{updated.url}/ready").status_code == 503
    body = {"model": updated.model.name, "prompt": [1], "max_tokens": 1}
    assert "asleep" in refused(updated, "/v1/completions", **body)
    assert post(updated, "/wake_up?tags=weights")["status"] == "sleeping"
    assert post(updated, "/wake_up?tags=kv_cache")["status"] == "awake"
    assert httpx.get(f"{updated.url}/is_sleeping").json() == {"is_sleeping": False}
    assert one_answer(updated) == before
    updated.wait_idle()


def restart(cluster: Cluster, name: str) -> None:
    """Start a killed worker again, and wait until it has joined."""
    process = cluster.workers[name]
    num_joined = process.log.read_text().count("registered")
    process.start()
    wait(lambda: process.log.read_text().count("registered") > num_joined)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


def test_a_worker_that_starts_with_old_weights_gets_the_new_ones(
    updated: Cluster, checkpoint: Path, tmp_path: Path
) -> None:
    folder = Trainer(checkpoint, tmp_path).step("after")
    post(updated, "/update_weights", path=str(folder), weight_version="after")
    updated.workers["prefill-0"].kill()
    restart(updated, "prefill-0")
    wait(lambda: version_of(updated) == "after")
    updated.wait_ready()
    [expected] = greedy(folder, PROMPTS[:1], NUM_TOKENS)
    answer = one_answer(updated)
    assert (answer["weight_version"], answer["token_ids"]) == ("after", expected)
    with Baton(f"127.0.0.1:{updated.grpc_port}") as baton:
        [said] = baton.generate(PROMPTS[0], max_tokens=NUM_TOKENS, temperature=0.0).answers
    assert said.weight_version == "after"
    for url, body in (
        ("/v1/responses", {"input": "a", "max_output_tokens": 4}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}),
    ):
        reply = httpx.post(f"{updated.url}{url}", json={"model": updated.model.name, **body})
        assert reply.json()["weight_version"] == "after", reply.text
