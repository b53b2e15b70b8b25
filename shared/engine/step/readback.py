"""Copy of a step's tokens, and of rows that it returns, to the host without delaying the device."""

from __future__ import annotations

from typing import Protocol

import torch

#: Steps whose tokens may be in transfer at a time: a running one, and one after it.
_NUM_BUFFERS = 2


class PendingTokens(Protocol):
    """The tokens of a launched step."""

    def wait(self) -> list[int]:
        """Wait until the step and everything before it has been computed; return its tokens."""
        ...


class Readback(Protocol):
    """Copies from the device to the host."""

    def start(self, tokens: torch.Tensor) -> PendingTokens:
        """Copy int64 [n] to the host after the step that computes them."""
        ...

    def start_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows [n, width] on the host, which belong to the caller.

        They are complete once the step's tokens are: call it before `start` or `nothing`.
        """
        ...

    def nothing(self) -> PendingTokens | None:
        """Return what to wait for after a step that samples no token.

        None: such a step is over when it is launched.
        """
        ...


class HostReadback:
    """For a model on the host, which has finished when it returns."""

    def start(self, tokens: torch.Tensor) -> PendingTokens:
        """See `Readback.start`."""
        return _OnHost(tokens)

    def start_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Readback.start_rows`."""
        return rows

    def nothing(self) -> PendingTokens | None:
        """See `Readback.nothing`."""
        return None


class _OnHost:
    def __init__(self, tokens: torch.Tensor) -> None:
        self._tokens = tokens

    def wait(self) -> list[int]:
        token_ids: list[int] = self._tokens.tolist()
        return token_ids


class PinnedReadback:
    """Copies to pinned memory after the step; an event reports the end."""

    def __init__(self, max_num_tokens: int) -> None:
        self._buffers = [
            torch.zeros(max_num_tokens, dtype=torch.int64, pin_memory=True)
            for _ in range(_NUM_BUFFERS)
        ]
        self._events = [torch.cuda.Event() for _ in range(_NUM_BUFFERS)]
        self._next = 0

    def start(self, tokens: torch.Tensor) -> PendingTokens:
        """See `Readback.start`."""
        place, self._next = self._next, (self._next + 1) % _NUM_BUFFERS
        host = self._buffers[place][: len(tokens)]
        host.copy_(tokens, non_blocking=True)
        self._events[place].record()
        return _Copied(host, self._events[place])

    def start_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Readback.start_rows`."""
        host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        return host.copy_(rows, non_blocking=True)

    def nothing(self) -> PendingTokens | None:
        """See `Readback.nothing`."""
        place, self._next = self._next, (self._next + 1) % _NUM_BUFFERS
        self._events[place].record()
        return _Copied(self._buffers[place][:0], self._events[place])


class _Copied:
    def __init__(self, host: torch.Tensor, event: torch.cuda.Event) -> None:
        self._host = host
        self._event = event

    def wait(self) -> list[int]:
        self._event.synchronize()
        token_ids: list[int] = self._host.tolist()
        return token_ids
