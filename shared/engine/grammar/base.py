"""The interfaces of a grammar: what the engine asks of one, and what makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.engine.grammar.spec import GrammarSpec


class Grammar(Protocol):
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


class CompiledGrammar(Protocol):
    """A grammar for any number of sequences. Threads may share it."""

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, roughly."""
        ...

    def start(self, end_token_ids: Sequence[int]) -> Grammar:
        """At the beginning. Any of `end_token_ids`, and only those, may end what is complete."""
        ...


class GrammarBackend(Protocol):
    """A library that compiles grammars for one vocabulary. Threads may share it."""

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Takes milliseconds, and seconds for what is large.

        Raises:
            InvalidRequestError: it is no valid grammar; the message says where.
            UnsupportedError: this library cannot follow it.
        """
        ...
