"""The interfaces of what makes grammars. What a sequence asks of one: `sequence.grammar`."""

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
