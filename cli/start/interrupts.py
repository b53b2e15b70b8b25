"""Signals that end a command after its cleanup."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived. Like KeyboardInterrupt, no `except Exception` catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return those of `SIGNALS` that end this command: under `nohup` SIGHUP does not."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return tuple(number for number in SIGNALS if number is not signal.SIGHUP)
    return SIGNALS


def heed_ctrl_c() -> None:
    """Let SIGINT raise KeyboardInterrupt, also if a script started this process in the background.

    Such a process inherits that SIGINT is ignored, and Python does not change that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def interrupts() -> Iterator[None]:
    """Raise `Terminated` on the first SIGTERM or SIGHUP in the context; ignore later ones."""
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
