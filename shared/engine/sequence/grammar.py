"""The interfaces of a grammar that a sequence follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Matcher(Protocol):
    """How far one sequence has come in its grammar. One thread at a time."""

    @property
    def is_terminated(self) -> bool:
        """Whether an end token was accepted: nothing may follow."""
        ...

    def fill_mask(self, bits: Tensor, row: int) -> None:
        """Write which tokens may come next into `bits[row]`. Not once it is terminated.

        bits: int32 [rows, ceil(vocab / 32)] on the host; bit i % 32 of word i // 32 is token i's.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Go on by this token. False, and nothing has changed, if it may not come next."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the tokens that were accepted last, the end token included."""
        ...


class Grammar(Matcher, Protocol):
    """A matcher of the engine's: a step takes only sequences whose mask is there.

    Where it is not, `accept` and `fill_mask` wait for it, and raise UnavailableError or
    InvalidRequestError if none will come.
    """

    @property
    def error(self) -> Exception | None:
        """Why it cannot go on, if it cannot: then the mask will never be there."""
        ...

    def ask_mask(self) -> None:
        """Begin to compute the mask of the next token; returns at once."""
        ...

    def wait_mask(self, timeout_s: float, *, patiently: bool = False) -> bool:
        """Whether the mask of the next token is there within this time. Asks for it, too.

        A matcher that has kept a caller waiting in vain keeps none waiting again until it is quick
        again, but for those that wait `patiently`. The end of a grammar needs no mask.
        """
        ...
