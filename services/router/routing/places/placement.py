"""A placement: the worker that writes an answer, and the workers that may compute its prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.router.routing.base import Candidate


class Place(StrEnum):
    """Where a prompt is computed, from the view of the worker that writes the answer."""

    #: By another worker, which hands its KV over.
    HANDED_OVER = "handed_over"
    #: By the worker itself.
    HERE = "here"
    #: The beginning by another worker, the rest by the worker itself.
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class Split:
    """A prompt in two parts. Times in milliseconds."""

    #: Leading tokens that the reader computes: whole blocks.
    num_tokens: int
    #: From now to the first token.
    ttft_ms: float
    #: The computation of either part alone.
    reader_ms: float
    writer_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One way to serve a request. Its estimates are those of its candidates."""

    #: With the estimates for its place: `queue_ms` and `prefill_ms` are set if it computes. Of a
    #: split, those for the case that it computes all.
    writer: Candidate
    #: Workers that compute the prompt, best first; empty: the writer does.
    readers: tuple[Candidate, ...] = ()
    #: None: one worker computes all of the prompt.
    split: Split | None = None
    #: What it costs, by name, if it was compared with others.
    terms_ms: Mapping[str, float] = field(default_factory=dict)
    #: Sum of its terms, if it was compared with others.
    cost_ms: float = 0.0
    #: Reason to choose it only if all others have one, too; empty: none.
    flaw: str = ""

    @property
    def place(self) -> Place:
        """Where the prompt is computed."""
        if self.split is not None:
            return Place.SPLIT
        return Place.HANDED_OVER if self.readers else Place.HERE

    @property
    def reader(self) -> Candidate:
        """The worker that computes the prompt."""
        return self.readers[0] if self.readers else self.writer

    @property
    def ttft_ms(self) -> float:
        """Time from now to the first token, without the writer's wait for an adapter."""
        return self.reader.ttft_ms if self.split is None else self.split.ttft_ms

    @property
    def itl_ms(self) -> float:
        """Time between two tokens."""
        return self.writer.itl_ms
