"""One measured process: started, asked, paused while another is measured, ended."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from benchmarks.peers.engines.tree import END_GRACE_S, ProcessTree
from benchmarks.peers.workers.wire import Many, Single, Vectors
from cli.places import ROOT
from shared.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: Imports the standard library only.
CHILD = ROOT / "cli/start/child.py"
#: Lines of a log that are shown when its process ended unexpectedly.
TAIL_LINES = 12


class PeerError(BatonError):
    """A measured process failed. Holds the end of its log."""


class PeerUnavailableError(PeerError):
    """It says itself that it cannot do what was asked for."""


class ChildProcess:
    """A program with a log of its own, which dies with us. Close it."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("wb") as errors:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", str(CHILD), str(os.getpid()), *command],
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self.answers else errors,
                stderr=errors,
                start_new_session=True,
            )
        self.tree = ProcessTree(self._popen.pid)

    #: Whether its standard output is for us.
    answers = False

    def require_running(self) -> None:
        """Do nothing while it runs; raises PeerError with the end of its log otherwise."""
        if self._popen.poll() is not None:
            raise self._ended()

    def close(self) -> None:
        """End it and all that it started."""
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self.tree.end()
        self._popen.wait()

    def _tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])

    def _ended(self) -> PeerError:
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(END_GRACE_S)
        return PeerError(f"ended with {self._popen.poll()}. The end of its log:\n{self._tail()}")


class EngineProcess(ChildProcess):
    """A process that speaks `workers.wire`."""

    answers = True

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the engine; returns what it says of itself.

        Raises:
            PeerUnavailableError: it cannot do what was asked for, and says why.
            PeerError: it ended, or took too long.
        """
        answer = self._read(timeout_s)
        if "unavailable" in answer:
            raise PeerUnavailableError(answer["unavailable"])
        ready: dict[str, Any] = answer["ready"]
        return ready

    def one(
        self,
        prompt: Sequence[int],
        num_tokens: int,
        adapters: Sequence[int | None] = (),
        *,
        timeout_s: float,
    ) -> Single:
        """See `AdapterEngine.one`."""
        return Single(**self._ask("one", [prompt], num_tokens, adapters, timeout_s))

    def many(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        adapters: Sequence[int | None] = (),
        *,
        timeout_s: float,
    ) -> Many:
        """See `AdapterEngine.many`."""
        return Many(**self._ask("many", prompts, num_tokens, adapters, timeout_s))

    def embed(self, texts: Sequence[Sequence[int]], *, timeout_s: float) -> Vectors:
        """See `OfflineEmbedder.embed`."""
        return Vectors(**self._ask("embed", texts, 0, (), timeout_s))

    def _ask(
        self,
        op: str,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        adapters: Sequence[int | None],
        timeout_s: float,
    ) -> dict[str, Any]:
        request = {
            "op": op,
            "prompts": list(prompts),
            "num_tokens": num_tokens,
            "adapters": list(adapters),
        }
        line = json.dumps(request) + "\n"
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(line.encode())
            self._popen.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        answer = self._read(timeout_s)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def _read(self, timeout_s: float) -> dict[str, Any]:
        """One line. It is written at once, so it can be read without a deadline once it begins."""
        assert self._popen.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._popen.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline_s - time.monotonic())):
                raise PeerError(
                    f"no answer within {timeout_s:g} s. The end of its log:\n{self._tail()}"
                )
        line = self._popen.stdout.readline()
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer
