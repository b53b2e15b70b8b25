"""A grammar in a host process: masks come from there, everything else is decided here."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np

from shared.engine.grammar.host.messages import Close, Mask, Move, Opened
from shared.errors import InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.engine.grammar.host.process import GrammarHost

#: Number of last tokens whose masks are kept: as many as a draft may take back.
_NUM_KEPT = 32
#: Longest wait for a mask in the engine's thread.
_QUICK_NS = 1_000_000


class HostedGrammar:
    """See `Grammar`. The engine's thread uses it; the host's reader thread adds the masks.

    Tokens that were accepted and taken back stay known with their masks: each draft is checked
    twice.
    """

    def __init__(
        self, host: GrammarHost, opened: Opened, end_token_ids: Sequence[int], *, param: str
    ) -> None:
        self._host = host
        self._param = param
        self._matcher_id = opened.matcher_id
        self._ends = frozenset(end_token_ids)
        self._began_terminated = opened.is_terminated
        self._path: list[int] = []
        self._place = 0
        #: Masks by position; the reader thread adds to them.
        self._masks = {} if opened.is_terminated else {0: opened.mask}
        #: Number of path tokens known to the host after it takes back `_num_back` tokens.
        self._num_told = 0
        self._num_back = 0
        #: Positions of requested masks, by ticket.
        self._tickets: dict[int, int] = {}
        self._last_ticket = 0
        self._fault = ""
        self._is_slow = opened.took_ns > _QUICK_NS
        self._was_missed = False
        close = Close(opened.matcher_id)
        weakref.finalize(self, host.send_later, close).atexit = False

    @property
    def is_terminated(self) -> bool:
        """See `Matcher.is_terminated`."""
        if not self._place:
            return self._began_terminated
        return self._path[self._place - 1] in self._ends

    @property
    def error(self) -> Exception | None:
        """See `Grammar.error`."""
        if self.is_terminated or self._place in self._masks:
            return None
        if self._fault:
            return InvalidRequestError(f"{self._param}: {self._fault}", param=self._param)
        if self._host.fault:
            return UnavailableError(f"{self._param} is not followed any more: {self._host.fault}")
        return None

    def ask_mask(self) -> None:
        """See `Grammar.ask_mask`."""
        place = self._place
        if self._is_there() or self._host.fault:
            return
        with self._host.news:
            if place in self._tickets.values():
                return
            self._last_ticket += 1
            self._tickets[self._last_ticket] = place
        self._unsay(place)
        told = self._path[self._num_told : place]
        self._host.move(Move(self._matcher_id, self._last_ticket, self._num_back, told))
        self._num_told, self._num_back = place, 0

    def wait_mask(self, timeout_s: float, *, patiently: bool = False) -> bool:
        """See `Grammar.wait_mask`."""
        if self._is_there():
            return True
        self.ask_mask()
        may_wait = timeout_s > 0 and (patiently or not self._is_slow)
        with self._host.news:
            self._host.news.wait_for(self._is_settled, timeout_s if may_wait else 0)
            if self._is_there():
                return True
            self._is_slow |= may_wait
            self._was_missed = True
        return False

    def fill_mask(self, bits: Tensor, row: int) -> None:
        """See `Matcher.fill_mask`."""
        bits.numpy()[row] = np.frombuffer(self._mask(), dtype=np.int32)

    def accept(self, token_id: int) -> bool:
        """See `Matcher.accept`."""
        if self.is_terminated:
            return False
        mask = self._mask()
        if not (0 <= token_id < 8 * len(mask) and mask[token_id // 8] >> token_id % 8 & 1):
            return False
        if self._path[self._place : self._place + 1] != [token_id]:
            self._cut()
            self._path.append(token_id)
        self._place += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        """See `Matcher.rollback`."""
        self._place -= num_tokens

    def take(self, answer: Mask) -> bool:
        """Take a mask in the reader's thread, with `news` held; return whether a caller had given
        up waiting.
        """
        place = self._tickets.pop(answer.ticket, None)
        self._fault = self._fault or answer.fault
        if place is not None and answer.mask:
            self._masks[place] = answer.mask
            for old in [one for one in self._masks if one < self._place - _NUM_KEPT]:
                del self._masks[old]
        self._is_slow = answer.took_ns > _QUICK_NS
        was_missed, self._was_missed = self._was_missed, False
        return was_missed

    def _mask(self) -> bytes:
        if not self._is_there():
            self.ask_mask()
            with self._host.news:
                self._host.news.wait_for(self._is_settled)
        if self.error is not None:
            raise self.error
        return self._masks[self._place]

    def _is_there(self) -> bool:
        return self.is_terminated or self._place in self._masks

    def _is_settled(self) -> bool:
        return self._is_there() or self.error is not None

    def _cut(self) -> None:
        """Drop the tokens after the current position: a different one follows."""
        place = self._place
        if len(self._path) == place:
            return
        self._unsay(place)
        del self._path[place:]
        with self._host.news:
            for ticket in [ticket for ticket, one in self._tickets.items() if one > place]:
                del self._tickets[ticket]
            for old in [one for one in self._masks if one > place]:
                del self._masks[old]

    def _unsay(self, place: int) -> None:
        """Let the host take back the tokens after `place`."""
        if self._num_told > place:
            self._num_back += self._num_told - place
            self._num_told = place
