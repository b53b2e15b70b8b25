"""One service as a child process: started, watched, stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from typing import IO, TYPE_CHECKING

from cli.errors import CommandError
from cli.huge_pages import service_environ
from cli.places import python_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: Number of lines of a log that are shown when its process ended unexpectedly.
TAIL_LINES = 15
#: Patterns of a reason, most reliable first: a service's own message, the end of a traceback, a
#: logged error.
_REASONS = (
    re.compile(r"cannot start: "),
    re.compile(r"^[\w.]*(Error|Exception|Exit|Interrupt)(: |$)"),
    re.compile(r"\[(error|critical) *\]|\"level\": *\"(error|critical)\""),
)


class ServiceProcess:
    """A service in a process group of its own, so that Ctrl-C reaches its parent alone.

    It writes to `log`, which starts empty, and it never outlives the process that started it.
    """

    def __init__(
        self,
        name: str,
        module: str,
        flags: Sequence[str],
        log: Path,
        *,
        environ: Mapping[str, str | None] | None = None,
    ) -> None:
        """Make a process. `environ`: changes of our environment; None removes a variable."""
        self.name = name
        self.module = module
        self.flags = tuple(flags)
        self._environ = dict(environ or {})
        self.log = log
        self._command = [
            *python_command("cli.start.child"),
            str(os.getpid()),
            *python_command(module),
            *flags,
        ]
        self._popen: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0

    @property
    def environ(self) -> dict[str, str]:
        """Environment of the process."""
        environ = {**service_environ(self.module), **self._environ}
        return {name: value for name, value in environ.items() if value is not None}

    @property
    def pid(self) -> int | None:
        """Its process id, after its start."""
        return self._popen.pid if self._popen else None

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, if it has ended; negative for a signal."""
        return self._popen.poll() if self._popen else None

    @property
    def age_s(self) -> float:
        """Seconds since its last start."""
        return time.monotonic() - self._started_s

    def start(self) -> None:
        """Start it, or restart it after its end; a restart continues the same log.

        Raises:
            CommandError: the log cannot be written.
        """
        self._started_s = time.monotonic()
        try:
            log = self.log.open("wb" if self._popen is None else "ab")
        except OSError as error:
            raise CommandError(f"cannot write {self.log}: {error.strerror}") from error
        with log:
            self._popen = self._launch(log)

    def _launch(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )

    def require_running(self) -> None:
        """Raise an error if it has ended.

        Raises:
            CommandError: it has ended; with the end of its log.
        """
        if self.exit_code is None:
            return
        tail = "\n".join(f"  {line}" for line in self.tail())
        raise CommandError(
            self.why_it_ended(),
            details=f"The end of {self.log}:\n{tail or '  (it wrote nothing)'}",
        )

    def why_it_ended(self) -> str:
        """Return how it ended, with its last error, in one line. Call it after its end."""
        code = self.exit_code or 0
        if code < 0:
            return f"{self.name} was killed by {signal.Signals(-code).name}"
        reason = last_error(self.tail())
        return f"{self.name} ended with {code}{f': {reason}' if reason else ''}"

    def tail(self) -> list[str]:
        """Return the last lines of its log."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return text.rstrip().splitlines()[-TAIL_LINES:]

    def ask_to_stop(self) -> None:
        """Send SIGTERM: finish running requests, accept no new ones."""
        if self._popen is not None and self.running:
            self._popen.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> bool:
        """Return whether it ended within the time."""
        if self._popen is None:
            return True
        try:
            self._popen.wait(max(timeout_s, 0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kill it."""
        if self._popen is not None and self.running:
            self._popen.kill()
            self._popen.wait()


def last_error(lines: Sequence[str]) -> str:
    """Return the line of a log with the reason for its process's end.

    Often that is not the last line: a library may report open resources at exit.
    """
    for pattern in _REASONS:
        found = [line for line in lines if pattern.search(line)]
        if found:
            return found[-1].strip()
    return lines[-1].strip() if lines else ""


def stop_all(processes: Sequence[ServiceProcess], *, grace_s: float) -> list[str]:
    """Ask all to stop, wait together, kill those that remain; return the names of the killed.

    KeyboardInterrupt while waiting (a second Ctrl-C) ends the wait.
    """
    deadline_s = time.monotonic() + grace_s
    for process in processes:
        process.ask_to_stop()
    try:
        for process in processes:
            process.wait(deadline_s - time.monotonic())
    except KeyboardInterrupt:
        pass
    killed = [process.name for process in processes if process.running]
    for process in processes:
        process.kill()
    return killed
