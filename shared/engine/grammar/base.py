"""The interfaces of a grammar: what the engine asks of one, and what makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from torch import Tensor

    from shared.request.grammar.spec import GrammarSpec


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


class CompiledGrammar(Protocol):
    """A grammar for any number of sequences. Threads may share it."""

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, roughly."""
        ...

    def start(self, end_token_ids: Sequence[int]) -> Matcher:
        """At the beginning. Any of `end_token_ids`, and only those, may end what is complete."""
        ...


class PlacedGrammar(Protocol):
    """A compiled grammar and where its sequences are followed. Threads may share it."""

    @property
    def size_bytes(self) -> int:
        """See `CompiledGrammar.size_bytes`."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether it went with its process."""
        ...

    def open(self, end_token_ids: Sequence[int], token_ids: Sequence[int]) -> Future[Grammar]:
        """Start behind these tokens; the end tokens are as for `CompiledGrammar.start`.

        The future raises RefusedTokenError if one of the tokens may not come, UnavailableError if
        the process has ended, InvalidRequestError if it cannot follow the grammar.
        """
        ...


class RefusedTokenError(Exception):
    """The token at this place is not what the grammar allows there."""

    def __init__(self, place: int) -> None:
        super().__init__(f"token {place}")
        self.place = place


class GrammarBackend(Protocol):
    """A library that compiles grammars for one vocabulary. Threads may share it."""

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Takes milliseconds, and seconds for what is large.

        Raises:
            InvalidRequestError: it is no valid grammar; the message says where.
            UnsupportedError: this library cannot follow it.
        """
        ...
