"""Counts what a piece of Python does, exactly and on any machine.

Hardware counters are closed to most CI machines, and time on them means little. Two counts are the
same in every run: bytecode instructions executed by this thread, and operators that torch
dispatches, see `operators`. They see what Python costs the host; they do not see inside C and C++.
Work that depends on measured time, as the engine's model of its steps, differs by some tenths of a
percent.
"""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


def count_bytecodes(run: Callable[[], object]) -> int:
    """Instructions executed inside `run`, in all Python functions that it calls."""
    num = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal num
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        num += event == "opcode"
        return trace

    before = sys.gettrace()
    # What the collector calls back, and when it comes, is not the work's.
    with _no_collection():
        sys.settrace(trace)
        try:
            run()
        finally:
            sys.settrace(before)
    return num


@contextmanager
def _no_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
