"""The weights that a request's answers are pinned to, from the first token on.

The adapter needs no pin: its digest is in the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.workers.generations import SHOWN_DIGITS
from shared.directory.generations import identity_of
from shared.errors import GenerationGoneError

if TYPE_CHECKING:
    from shared.directory.base import WorkerRecord
    from shared.request.adapter_ref import AdapterRef

_WITH = "+"


def written_by(identity: str, adapter: bytes) -> str:
    """Return what a client gets as the identity of an answer: weights, and an adapter's digest."""
    return f"{identity}{_WITH}{adapter.hex()}" if adapter else identity


def weights_of(written: str, adapter: AdapterRef | None) -> str:
    """Return the identity of the weights of an answer that a client resumes; empty: unknown.

    Raises:
        GenerationGoneError: it was written with another adapter than the request's, which may have
            been replaced under its name.
    """
    identity, _, digest = written.partition(_WITH)
    if written and digest != ("" if adapter is None else adapter.digest.hex()):
        name = "without an adapter" if adapter is None else f"with the adapter {adapter.name!r}"
        message = f"the answer was not written {name} as it is now: it cannot go on"
        raise GenerationGoneError(message)
    return identity


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
