"""The interfaces of grammar backends. For a sequence's interface see `sequence.grammar`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from shared.engine.sequence.grammar import Grammar, Matcher
    from shared.request.grammar.spec import GrammarSpec


class CompiledGrammar(Protocol):
    """A grammar for any number of sequences. Threads may share it."""

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the grammar."""
        ...

    def start(self, end_token_ids: Sequence[int]) -> Matcher:
        """Return a matcher at the beginning. Only `end_token_ids` may end a complete text."""
        ...


class PlacedGrammar(Protocol):
    """A compiled grammar and the place of its matchers. Threads may share it."""

    @property
    def size_bytes(self) -> int:
        """See `CompiledGrammar.size_bytes`."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether its process has ended, so that it cannot be used."""
        ...

    def open(self, end_token_ids: Sequence[int], token_ids: Sequence[int]) -> Future[Grammar]:
        """Start a matcher after these tokens; the end tokens are as for `CompiledGrammar.start`.

        The future raises RefusedTokenError if a token is not allowed, UnavailableError if the
        process has ended, InvalidRequestError if the process cannot follow the grammar.
        """
        ...


class RefusedTokenError(Exception):
    """The grammar does not allow the token at this place."""

    def __init__(self, place: int) -> None:
        super().__init__(f"token {place}")
        self.place = place


class GrammarBackend(Protocol):
    """A library that compiles grammars for one vocabulary. Threads may share it."""

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Return the compiled grammar, after milliseconds, or seconds for a large one.

        Raises:
            InvalidRequestError: it is no valid grammar; the message names the place.
            UnsupportedError: this library does not support it.
        """
        ...
