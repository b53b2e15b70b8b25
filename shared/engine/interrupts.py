"""Ctrl-C during a step, which is not to be cut in two."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Let a Ctrl-C take effect at the context's end. A second one takes effect at once.

    Only a program's main thread gets interrupts; in others, nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if is_main else None
    if handler is None or isinstance(handler, int):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if held:
            held.clear()
            handler(number, frame)
        held.append((number, frame))

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    for number, frame in held:
        handler(number, frame)
