"""A real redis-server on loopback for tests: started, stopped, paused, emptied."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

START_TIMEOUT_S = 20.0


def require_redis() -> str:
    """The path of redis-server; skips the test where there is none."""
    path = shutil.which("redis-server")
    if path is None:
        pytest.skip("redis-server is not installed")
    return path


class RedisServer:
    """One process on a port of its own, without persistence. `start` again after `kill`."""

    def __init__(self, folder: Path, *flags: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self._folder = folder
        self._argv = [
            require_redis(), *flags,
            "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder),
            "--save", "", "--appendonly", "no",
        ]  # fmt: skip
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self._folder / f"redis-{self.port}.log").open("ab") as log:
            self._popen = subprocess.Popen(self._argv, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert time.monotonic() < deadline, f"redis does not answer; log in {self._folder}"
            time.sleep(0.02)

    def kill(self) -> None:
        """End it without warning."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
            self._popen = None

    def pause(self) -> None:
        """Stop it without closing a connection."""
        assert self._popen is not None
        self._popen.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """The end of `pause`."""
        assert self._popen is not None
        self._popen.send_signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        """A blocking client, for looking and for breaking things."""
        return redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=10)

    def let_time_pass(self, seconds: float) -> None:
        """Every lease ends that much earlier."""
        with self.client() as client:
            for key in client.keys("*"):
                left_ms = client.pttl(key)
                if left_ms >= 0:
                    client.pexpire(key, max(int(left_ms - seconds * 1000), 0))

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                # By default the client tries again by itself, seconds later.
                client.set_retry(Retry(NoBackoff(), 0))
                client.ping()
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False
        return True
