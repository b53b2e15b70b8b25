"""Work on what a client sends, beside the event loop if it is long: other streams must not wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Texts of so many characters are tokenised here, which takes less time than the way to a thread.
INLINE_CHARS = 1024


async def aside(size: int, work: Callable[[], T], *, inline: int = INLINE_CHARS) -> T:
    """Return the result of `work`, which runs in a thread if `size` is over `inline`."""
    return work() if size <= inline else await asyncio.to_thread(work)
