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

import psutil

from cli.places import ROOT
from shared.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: Lines of a log that are shown when its process ended unexpectedly.
TAIL_LINES = 12
END_GRACE_S = 10.0


class PeerError(BatonError):
    """A measured process failed. Holds the end of its log."""


class PeerUnavailableError(PeerError):
    """It says itself that it cannot do what was asked for."""


class ProcessTree:
    """A process and all that it starts. Use as a context manager, or close it.

    A paused tree takes no processor time at all: engines whose threads spin at barriers would
    otherwise take it from the one that is measured.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("wb") as errors:
            self.popen = subprocess.Popen(
                # It dies with us. The script imports the standard library only.
                [sys.executable, "-P", str(ROOT / "cli" / "child.py"), str(os.getpid()), *command],
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._root = psutil.Process(self.popen.pid)

    def tree(self) -> list[psutil.Process]:
        """It and its descendants that live."""
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def pause(self) -> None:
        """Stop it where it is."""
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        """Let it go on."""
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def cpu_s(self) -> float:
        """Processor time that the tree has used so far."""
        total_s = 0.0
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total_s += times.user + times.system
        return total_s

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])

    def close(self) -> None:
        """End it and all that it started."""
        self.resume()
        processes = self.tree()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(processes, timeout=END_GRACE_S)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.popen.wait()


class EngineProcess(ProcessTree):
    """A process that speaks `workers.wire`."""

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

    def one(self, prompt: Sequence[int], num_tokens: int, *, timeout_s: float) -> list[float]:
        """See `OfflineEngine.one`."""
        times_s: list[float] = self._ask("one", [prompt], num_tokens, timeout_s)["times_s"]
        return times_s

    def many(self, prompts: Sequence[Sequence[int]], num_tokens: int, *, timeout_s: float) -> float:
        """See `OfflineEngine.many`."""
        return float(self._ask("many", prompts, num_tokens, timeout_s)["elapsed_s"])

    def _ask(
        self, op: str, prompts: Sequence[Sequence[int]], num_tokens: int, timeout_s: float
    ) -> dict[str, Any]:
        line = json.dumps({"op": op, "prompts": list(prompts), "num_tokens": num_tokens}) + "\n"
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.write(line.encode())
            self.popen.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        answer = self._read(timeout_s)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def _read(self, timeout_s: float) -> dict[str, Any]:
        """One line. It is written at once, so it can be read without a deadline once it begins."""
        assert self.popen.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.popen.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline_s - time.monotonic())):
                raise PeerError(
                    f"no answer within {timeout_s:g} s. The end of its log:\n{self.tail()}"
                )
        line = self.popen.stdout.readline()
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self) -> PeerError:
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(END_GRACE_S)
        return PeerError(f"ended with {self.popen.poll()}. The end of its log:\n{self.tail()}")
