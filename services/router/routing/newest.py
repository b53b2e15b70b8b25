"""The generation of the model's weights that writes new answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.routing.room import has_space, has_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.routing.book import Book
    from services.router.workers.endpoint import Endpoint


class Newest:
    """The newest generation whose workers have room: decode workers, and prefill workers if any.

    An older generation serves while the newer ones are full; it may end meanwhile.
    """

    def __init__(self, book: Book, *, max_worker_queue_ms: float) -> None:
        """Choose generations by this book. `max_worker_queue_ms`: see WorkerRoom."""
        self._book = book
        self._max_queue_ms = max_worker_queue_ms

    def pick(
        self, writers: list[Endpoint], readers: list[Endpoint], num_tokens: int
    ) -> tuple[list[Endpoint], list[Endpoint]]:
        """Return decode and prefill workers of one generation; all of them are usable."""
        numbers = {writer.record.generation for writer in writers}
        if len(numbers | {reader.record.generation for reader in readers}) <= 1:
            return writers, readers
        served = numbers & {reader.record.generation for reader in readers}
        choices = [
            (_of(writers, number), _of(readers, number))
            for number in sorted(served or numbers, reverse=True)
        ]
        with_room = (choice for choice in choices if self._has_room(*choice, num_tokens))
        return next(with_room, choices[0] if choices else ([], []))

    def pick_readers(self, readers: list[Endpoint]) -> list[Endpoint]:
        """Return the usable prefill workers of one generation, for prompts without an answer."""
        numbers = sorted({reader.record.generation for reader in readers}, reverse=True)
        if len(numbers) <= 1:
            return readers
        now_s = self._book.clock()
        choices = [_of(readers, number) for number in numbers]
        with_time = (
            choice
            for choice in choices
            if any(has_time(each, now_s, self._max_queue_ms) for each in choice)
        )
        return next(with_time, choices[0])

    def _has_room(
        self, writers: Sequence[Endpoint], readers: Sequence[Endpoint], num_tokens: int
    ) -> bool:
        now_s = self._book.clock()
        return any(has_space(e, num_tokens) for e in writers) and any(
            has_time(e, now_s, self._max_queue_ms) for e in readers or writers
        )


def _of(endpoints: Sequence[Endpoint], generation: int) -> list[Endpoint]:
    return [e for e in endpoints if e.record.generation == generation]
