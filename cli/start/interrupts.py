"""Signals that end a command, so that it still cleans up."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived. Like KeyboardInterrupt, it passes every `except Exception`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def ending_signals() -> tuple[signal.Signals, ...]:
    """Those of `SIGNALS` that end this command: under `nohup` the terminal's end does not."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return tuple(number for number in SIGNALS if number is not signal.SIGHUP)
    return SIGNALS


def heed_ctrl_c() -> None:
    """Let SIGINT raise KeyboardInterrupt, also in what a script has started in the background.

    Such a process inherits that SIGINT is ignored, and Python leaves it at that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def interrupts() -> Iterator[None]:
    """Inside, the first SIGTERM or SIGHUP raises `Terminated`; later ones change nothing."""
    heed_ctrl_c()
    numbers = ending_signals()

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    previous = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
