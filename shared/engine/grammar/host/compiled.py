"""A compiled grammar in another process."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from shared.engine.grammar.cost import GrammarCost
from shared.engine.grammar.host.messages import Forget

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from shared.engine.grammar.host.messages import Compiled
    from shared.engine.grammar.host.process import GrammarHost
    from shared.engine.sequence.grammar import Grammar


class HostedCompiled:
    """See `PlacedGrammar`."""

    def __init__(self, host: GrammarHost, compiled: Compiled, param: str) -> None:
        self._host = host
        self.grammar_id = compiled.grammar_id
        self.cost = GrammarCost(
            compile_s=compiled.compile_s,
            size_bytes=compiled.size_bytes,
            token_s=compiled.token_s,
        )
        #: Time of compiling and measuring.
        self.cpu_s = compiled.cpu_s
        self.param = param
        forget = Forget(compiled.grammar_id)
        weakref.finalize(self, host.send_later, forget).atexit = False

    @property
    def size_bytes(self) -> int:
        """See `PlacedGrammar.size_bytes`."""
        return self.cost.size_bytes

    @property
    def is_lost(self) -> bool:
        """See `PlacedGrammar.is_lost`."""
        return bool(self._host.fault)

    def open(self, end_token_ids: Sequence[int], token_ids: Sequence[int]) -> Future[Grammar]:
        """See `PlacedGrammar.open`."""
        return self._host.open(self, end_token_ids, token_ids)


class CompileError(Exception):
    """A failed compilation, with its reason and its CPU time."""

    def __init__(self, reason: Exception, cpu_s: float) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.cpu_s = cpu_s
