"""Asks a cluster whose weights change, and changes it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import httpx

from tests.e2e.asking import prompt_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.processes import Cluster

NUM_TOKENS = 6
#: More than a block each, and the second begins as the first.
PROMPTS = (
    prompt_of(40, seed=1),
    prompt_of(40, seed=1) + prompt_of(20, seed=2),
    prompt_of(70, seed=3),
)


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


def cached_tokens(cluster: Cluster, prompt: tuple[int, ...]) -> tuple[int, list[int]]:
    """Of a prompt: how many were cached, and the answer."""
    with httpx.Client(timeout=60) as client:
        reply = ask(client, cluster, prompt)
    details = reply["usage"]["prompt_tokens_details"] or {}
    return details.get("cached_tokens") or 0, reply["choices"][0]["token_ids"]


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


def wait(condition: Callable[[], object], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
