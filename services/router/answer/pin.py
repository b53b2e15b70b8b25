"""The weights that a request's answers are written with, from the first token on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.workers.generations import SHOWN_DIGITS
from shared.directory.generations import identity_of
from shared.errors import GenerationGoneError

if TYPE_CHECKING:
    from shared.directory.base import WorkerRecord


class Pin:
    """Belongs to one request; its answers and the steps of its beams share it."""

    def __init__(self, identity: str = "") -> None:
        """`identity`: the weights that a resumed answer began with; empty: no worker has begun."""
        self.identity = identity
        self._generation: int | None = None

    def hold(self, record: WorkerRecord) -> None:
        """Pin the answers to the worker's weights: it gave tokens that the client will get."""
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
