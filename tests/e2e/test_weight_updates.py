"""Weights that change under load: each answer is of one version, and says of which.

Three updates; `make updates` takes twenty.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.e2e.asking import prompt_of
from tests.e2e.conftest import ENGINE_FLAGS
from tests.e2e.processes import Cluster
from tests.e2e.training import Trainer, greedy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
        made.add_worker("prefill", "prefill-0", *ENGINE_FLAGS)
        made.add_worker("decode", "decode-0", *ENGINE_FLAGS, "--local-prefill-threshold", "0")
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


def ask(client: httpx.Client, cluster: Cluster, prompt: tuple[int, ...]) -> Any:
    body = {
        "model": cluster.model.name,
        "prompt": list(prompt),
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
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
