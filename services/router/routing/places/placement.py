"""A placement: the worker that writes an answer, and the workers that may compute its prompt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.routing.base import Candidate


class Place(StrEnum):
    """Where a prompt is computed, from the view of the worker that writes the answer."""

    #: By another worker, which hands its KV over.
    HANDED_OVER = "handed_over"
    #: By the worker itself.
    HERE = "here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One way to serve a request. Its estimates are those of its candidates."""

    #: With the estimates for its place: `queue_ms` and `prefill_ms` are set if it computes.
    writer: Candidate
    #: Workers that compute the prompt, best first; empty: the writer does.
    readers: tuple[Candidate, ...] = ()
    #: Sum of its terms, if it was compared with others.
    cost_ms: float = 0.0
    #: Reason to choose it only if all others have one, too; empty: none.
    flaw: str = ""

    @property
    def place(self) -> Place:
        """Where the prompt is computed."""
        return Place.HANDED_OVER if self.readers else Place.HERE

    @property
    def reader(self) -> Candidate:
        """The worker that computes the prompt."""
        return self.readers[0] if self.readers else self.writer

    @property
    def ttft_ms(self) -> float:
        """Time from now to the first token, without the writer's wait for an adapter."""
        return self.reader.ttft_ms

    @property
    def itl_ms(self) -> float:
        """Time between two tokens."""
        return self.writer.itl_ms
