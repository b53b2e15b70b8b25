"""The interfaces of a sequence's grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Matcher(Protocol):
    """The position of one sequence in its grammar. One thread at a time."""

    @property
    def is_terminated(self) -> bool:
        """Whether an end token was accepted: no token may follow."""
        ...

    def fill_mask(self, bits: Tensor, row: int) -> None:
        """Write the mask of the next token into `bits[row]`. Do not call it after termination.

        bits: int32 [rows, ceil(vocab / 32)] on the host; bit i % 32 of word i // 32 is token i's.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by this token; return False without any change if it is not allowed."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens, the end token included."""
        ...


class Grammar(Matcher, Protocol):
    """A matcher for the engine: a step takes only sequences whose mask is ready.

    If it is not, `accept` and `fill_mask` wait for it, and raise UnavailableError or
    InvalidRequestError if none will come.
    """

    @property
    def error(self) -> Exception | None:
        """Error because of which it cannot continue, if any: then the mask never becomes ready."""
        ...

    def ask_mask(self) -> None:
        """Start to compute the mask of the next token; return at once."""
        ...

    def wait_mask(self, timeout_s: float, *, patiently: bool = False) -> bool:
        """Return whether the mask of the next token is ready within this time; request it, too.

        After a wait in vain no later call waits until the matcher is fast again, except with
        `patiently`. The end of a grammar needs no mask.
        """
        ...
