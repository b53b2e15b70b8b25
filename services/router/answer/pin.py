"""The weights that a request's answers are pinned to, from the first token on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.workers.generations import SHOWN_DIGITS
from shared.directory.generations import identity_of
from shared.errors import GenerationGoneError

if TYPE_CHECKING:
    from shared.directory.base import WorkerRecord


class Pin:
    """The pinned weights of one request; its answers and the steps of its beams share it."""

    def __init__(self, identity: str = "") -> None:
        """Pin to `identity`, with which a resumed answer began; empty: not pinned yet."""
        self.identity = identity
        self._generation: int | None = None

    def hold(self, record: WorkerRecord) -> None:
        """Pin the answers to the weights of the worker that made tokens for the client."""
        if not self.identity:
            self.identity = identity_of(record)
        if self.identity == identity_of(record):
            self._generation = record.generation

    def gone(self, request_id: str, lost: Exception | None) -> GenerationGoneError:
        """Return the error for the client if no worker with these weights is left."""
        number = "" if self._generation is None else f"generation {self._generation}, "
        message = (
            f"the answer to {request_id} cannot go on: no decode worker is left that has the "
            f"weights which it began with ({number}identity {self.identity[:SHOWN_DIGITS]})"
        )
        return GenerationGoneError(message if lost is None else f"{message}; {lost}")
