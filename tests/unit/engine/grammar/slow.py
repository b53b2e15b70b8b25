"""Backends that take their time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from shared.engine.grammar.base import CompiledGrammar, GrammarBackend
    from shared.engine.sequence.grammar import Matcher
    from shared.request.grammar.spec import GrammarSpec

#: Far more than a grammar process takes for any grammar of these tests.
COMPILE_S = 0.5


class Slow:
    """A backend, a grammar of it, or a matcher, whose masks get slow with the sixth token."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._num = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        return Slow(self._inner.compile(spec))

    def start(self, end_token_ids: Sequence[int]) -> Matcher:
        return Slow(self._inner.start(end_token_ids))

    def accept(self, token_id: int) -> bool:
        is_accepted: bool = self._inner.accept(token_id)
        self._num += is_accepted
        return is_accepted

    def rollback(self, num_tokens: int) -> None:
        self._inner.rollback(num_tokens)
        self._num -= num_tokens

    def fill_mask(self, bits: torch.Tensor, row: int) -> None:
        if self._num >= 6:
            burn(0.004)
        self._inner.fill_mask(bits, row)


class SlowToCompile:
    """A backend."""

    def __init__(self, inner: GrammarBackend) -> None:
        self._inner = inner

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        burn(COMPILE_S)
        return self._inner.compile(spec)


def burn(cpu_s: float) -> None:
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass
