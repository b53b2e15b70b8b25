"""Calls of Redis, with its errors converted to ours."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis import exceptions

from shared.errors import DeadlineError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def mapped() -> Iterator[None]:
    """Convert Redis's errors to ours. Their messages have the address and no password.

    A cancellation that coincides with an answer can come out of the client as an error, or be lost;
    a caller that waits for the task would then wait forever.
    """
    try:
        yield
    except (exceptions.TimeoutError, TimeoutError) as error:
        _require_not_cancelled()
        raise DeadlineError(f"redis: {error}") from error
    except (exceptions.RedisError, OSError) as error:
        _require_not_cancelled()
        raise UnavailableError(f"redis: {error}") from error
    _require_not_cancelled()


def _require_not_cancelled() -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
