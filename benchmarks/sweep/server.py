"""A server that runs while loads are put on it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import httpx

from shared.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_POLL_S = 0.2
_STOP_S = 30.0


@contextmanager
def running_server(
    command: Sequence[str], url: str, *, log: TextIO, timeout_s: float
) -> Iterator[None]:
    """Run the command until the block ends; enter the block when `url`/health answers 200.

    The command's processes are a group of their own, which is interrupted at the end, and killed if
    it does not end. Its output goes to `log`.

    Raises:
        UnavailableError: the command ended, or did not answer within `timeout_s`.
    """
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(process, f"{url}/health", timeout_s)
        yield
    finally:
        _stop(process)


def _wait(process: subprocess.Popen[bytes], url: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise UnavailableError(f"the server ended with exit code {process.returncode}")
        try:
            if httpx.get(url, timeout=_STOP_S).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(_POLL_S)
    raise UnavailableError(f"{url} did not answer within {timeout_s:g} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            continue
        return
