"""What a worker's plain port answers."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, Gauge

from shared.address import join_address
from shared.errors import ConfigError
from shared.worker.health import metrics_server
from shared.worker.health.metrics_server import serve_metrics
from tests.fakes.servers.loopback import LOOPBACK6

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def get(url: str) -> tuple[int, str]:
    """Status and text."""
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@contextmanager
def serving(is_serving: Callable[[], bool], host: str = "127.0.0.1") -> Iterator[str]:
    """Its URL while it is up."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as probe:
        port = probe.getsockname()[1]
    registry = CollectorRegistry()
    Gauge("baton_answer", "A number.", registry=registry).set(42)
    stop = serve_metrics(registry, host, port, is_serving=is_serving)
    try:
        yield f"http://{join_address(host, port)}"
    finally:
        stop()


@pytest.mark.parametrize("host", ["127.0.0.1", LOOPBACK6])
async def test_health_says_what_the_worker_says_and_metrics_are_beside_it(host: str) -> None:
    open_ = True
    with serving(lambda: open_, host) as url:
        assert await asyncio.to_thread(get, f"{url}/health") == (200, "serving\n")
        open_ = False
        assert await asyncio.to_thread(get, f"{url}/health") == (503, "not serving\n")
        status, text = await asyncio.to_thread(get, f"{url}/metrics")
        assert status == 200
        assert "baton_answer 42.0" in text


async def test_a_worker_whose_event_loop_is_stuck_is_not_healthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_server, "_LOOP_TIMEOUT_S", 0.1)
    answers: list[int] = []
    answered = threading.Event()

    def ask(url: str) -> None:
        answers.append(get(f"{url}/health")[0])
        answered.set()

    with serving(lambda: True) as url:
        asking = asyncio.create_task(asyncio.to_thread(ask, url))
        await asyncio.sleep(0)
        # The loop stands still meanwhile.
        answered.wait(20)
        assert answers == [503]
        await asking
        assert (await asyncio.to_thread(get, f"{url}/health"))[0] == 200


async def test_a_port_that_is_taken_is_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="another --metrics-port"),
    ):
        serve_metrics(
            CollectorRegistry(), "127.0.0.1", taken.getsockname()[1], is_serving=lambda: True
        )
