"""Waits for a signal: `python -m tests.fakes.processes.waiting`."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.pause()
