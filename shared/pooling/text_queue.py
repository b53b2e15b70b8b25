"""Texts that wait for an encoder, and which of them it reads next."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from shared.pooling.base import Pooled, PoolRequest


@dataclass(frozen=True, slots=True, eq=False)
class WaitingText:
    """A text, and the future on its loop that gets the result."""

    request: PoolRequest
    done: asyncio.Future[Pooled]

    @property
    def num_tokens(self) -> int:
        """Its tokens."""
        return len(self.request.token_ids)


class TextQueue:
    """By priority, then by arrival. Not thread-safe."""

    def __init__(self, max_batch_tokens: int) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._texts: list[tuple[int, int, WaitingText]] = []
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, text: WaitingText) -> None:
        """Add a text."""
        heappush(self._texts, (text.request.priority, next(self._arrivals), text))

    def take(self) -> list[WaitingText]:
        """Remove and return the texts of the next batch: the first, and those that fit beside it.

        They are in the order of their lengths: equal ones are beside each other.
        """
        batch: list[WaitingText] = []
        room = self._max_batch_tokens
        while self._texts and (not batch or self._texts[0][2].num_tokens <= room):
            text = heappop(self._texts)[2]
            if not text.done.done():
                batch.append(text)
                room -= text.num_tokens
        return sorted(batch, key=lambda text: text.num_tokens)

    def remove(self, request_id: str) -> WaitingText | None:
        """Remove and return a text; None: it does not wait."""
        for number, (_, _, text) in enumerate(self._texts):
            if text.request.request_id == request_id:
                self._texts[number] = self._texts[-1]
                self._texts.pop()
                heapify(self._texts)
                return text
        return None

    def clear(self) -> list[WaitingText]:
        """Remove and return all texts."""
        texts = [text for _, _, text in self._texts]
        self._texts.clear()
        return texts
