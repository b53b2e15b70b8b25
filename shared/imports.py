"""What a program does while it imports its code."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def without_searches() -> Iterator[None]:
    """Import without searches for garbage.

    Nearly all that is imported stays to the end of the process, and each of Python's searches
    looks at more of it.
    """
    were_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if were_on:
            gc.enable()
