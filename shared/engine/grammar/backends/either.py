"""Several backends in order: a grammar that one does not support goes to the next."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from shared.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.engine.grammar.base import CompiledGrammar, GrammarBackend
    from shared.request.grammar.spec import GrammarSpec


class EitherBackend:
    """See `GrammarBackend`. Backends after the first are loaded on first use."""

    def __init__(
        self, first: GrammarBackend, others: Sequence[Callable[[], GrammarBackend]]
    ) -> None:
        """Use these backends.

        One of the `others` that raises ConfigError is not installed and is skipped.
        """
        self._loaded = [first]
        self._others = list(others)
        self._loading = threading.Lock()

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """See `GrammarBackend.compile`.

        Raises the first backend's error if none supports the grammar.
        """
        try:
            return self._loaded[0].compile(spec)
        except UnsupportedError as error:
            for backend in self._rest():
                try:
                    return backend.compile(spec)
                except UnsupportedError:
                    continue
            raise error

    def _rest(self) -> list[GrammarBackend]:
        with self._loading:
            while self._others:
                with suppress(ConfigError):
                    self._loaded.append(self._others.pop(0)())
            return self._loaded[1:]
