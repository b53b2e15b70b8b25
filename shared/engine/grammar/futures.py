"""Futures that depend on other futures."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
U = TypeVar("U")


def running() -> Future[T]:
    """Return a future that cannot be cancelled: its result comes in any case."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    return future


def settled(result: T) -> Future[T]:
    """Return a future that has a result."""
    future: Future[T] = Future()
    future.set_result(result)
    return future


def pass_on(future: Future[U], first: Future[T], action: Callable[[T], Future[U]]) -> None:
    """Set `future` to `action(result of first)`, or to the first error."""

    def end(second: Future[U]) -> None:
        error = second.exception()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(second.result())

    def go_on(done: Future[T]) -> None:
        try:
            second = action(done.result())
        except Exception as error:  # noqa: BLE001 it belongs to the one that waits
            future.set_exception(error)
        else:
            second.add_done_callback(end)

    first.add_done_callback(go_on)
