"""A running server, and a system that can become one."""

from __future__ import annotations

import time
import urllib.request
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.peers.engines.process import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.peers.engines.systems import Launch
    from benchmarks.peers.engines.tree import ProcessTree

MODEL_NAME = "m"
START_TIMEOUT_S = 600.0
POLL_S = 0.25


class Server(Protocol):
    """Answers OpenAI's API at `url`. Close it."""

    @property
    def url(self) -> str:
        """Base of the API, without `/v1`."""

    @property
    def trees(self) -> Sequence[ProcessTree]:
        """All of its processes."""

    def wait_ready(self) -> None:
        """Wait until it answers; raises PeerError if it cannot."""

    def close(self) -> None:
        """End it."""


class ServingSystem(Protocol):
    """A way to serve a model on this machine."""

    @property
    def name(self) -> str:
        """In tables and results."""

    def missing(self) -> str | None:
        """Why it cannot be started here and how to change that; None if it can."""

    def start(self, launch: Launch) -> Server:
        """Start it; it loads while the caller does something else."""

    def describe(self) -> dict[str, Any]:
        """What a reader of the result must know of its settings."""


def wait_for(url: str, require_running: Callable[[], None]) -> None:
    """Wait until a GET is answered with 200.

    Raises:
        PeerError: it took too long.
    """
    # The environment's proxy cannot reach this machine's own ports.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        require_running()
        try:
            with opener.open(url, timeout=5):
                return
        except OSError:
            time.sleep(POLL_S)
    raise PeerError(f"{url} did not answer within {START_TIMEOUT_S:g} s")
