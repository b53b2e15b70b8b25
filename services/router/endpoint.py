"""One live worker as this router sees it: what it registered, and what we have sent it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.directory.base import WorkerLoad, WorkerRecord


@dataclass(slots=True, eq=False)
class Endpoint:
    """A worker. The numbers are the router's own book, so they are never out of date."""

    record: WorkerRecord
    load: WorkerLoad
    #: It answered the canary, and nothing has failed since.
    ready: bool = False
    #: It refused a request because it is draining; its heartbeat will say so as well.
    refused: bool = False
    num_requests: int = 0
    #: Prompt tokens sent whose first token has not come back.
    num_waiting_tokens: int = 0
    #: Tokens of sequences that have not ended.
    num_held_tokens: int = 0

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.record.worker.name

    @property
    def draining(self) -> bool:
        """Whether it takes no new work."""
        return self.refused or self.load.draining

    @property
    def usable(self) -> bool:
        """Whether new work may be sent there."""
        return self.ready and not self.draining

    def __str__(self) -> str:
        return f"{self.record.worker} at {self.record.address}"


class Booking:
    """A sequence's entry in the books of the workers that it uses. `release` may come twice."""

    def __init__(self, decode: Endpoint, prefill: Endpoint | None, num_prompt_tokens: int) -> None:
        self._decode = decode
        self._computing: Endpoint | None = prefill or decode
        self._num_prompt_tokens = num_prompt_tokens
        self._num_tokens = num_prompt_tokens
        self._open = True
        decode.num_requests += 1
        decode.num_held_tokens += num_prompt_tokens
        self._computing.num_waiting_tokens += num_prompt_tokens
        if prefill is not None:
            prefill.num_requests += 1

    def add_tokens(self, count: int) -> None:
        """The sequence has grown. The first time, its prompt is computed."""
        if self._open:
            self._end_prompt()
            self._num_tokens += count
            self._decode.num_held_tokens += count

    def release(self) -> None:
        """The sequence has ended."""
        if self._open:
            self._open = False
            self._end_prompt()
            self._decode.num_requests -= 1
            self._decode.num_held_tokens -= self._num_tokens

    def _end_prompt(self) -> None:
        endpoint, self._computing = self._computing, None
        if endpoint is not None:
            endpoint.num_waiting_tokens -= self._num_prompt_tokens
            if endpoint is not self._decode:
                endpoint.num_requests -= 1
