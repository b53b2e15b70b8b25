"""The cost of a grammar, measured where it delays no step."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shared.engine.grammar.base import CompiledGrammar
    from shared.engine.sequence.grammar import Matcher

#: Number of tokens of each walk through a grammar.
_NUM_STEPS = 32
_SEED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarCost:
    """CPU time and memory of a grammar."""

    compile_s: float
    size_bytes: int
    #: Of the slowest token: its mask, and its acceptance.
    token_s: float

    def is_within(self, limits: GrammarCost) -> bool:
        """Return whether no cost exceeds that of `other`."""
        return (
            self.compile_s <= limits.compile_s
            and self.size_bytes <= limits.size_bytes
            and self.token_s <= limits.token_s
        )


#: A grammar within this cost is compiled and followed in the worker itself. That includes any JSON
#: for vocabularies of up to 256 Ki tokens.
CHEAP = GrammarCost(compile_s=0.25, size_bytes=2 << 20, token_s=0.0005)
#: A token of such a grammar that takes longer counts as late. The machine may have caused that: the
#: grammar is no longer cheap if another of the next `LATE_WINDOW` calls is late, or one is late by
#: far.
LATE_NS = 2_000_000
FAR_TOO_LATE_NS = 25 * LATE_NS
LATE_WINDOW = 64


def measure_token_s(
    compiled: CompiledGrammar, end_token_ids: Sequence[int], vocab_size: int
) -> float:
    """Return the time [s] of the slowest token of two walks: by first allowed and by any token.

    A walk ends where the grammar is not cheap. A time that is slow once, and not again, is ignored.
    """
    worst_s = _walk(compiled, end_token_ids, vocab_size)
    if CHEAP.token_s < worst_s < 4 * CHEAP.token_s:
        worst_s = min(worst_s, _walk(compiled, end_token_ids, vocab_size))
    return worst_s


def _walk(compiled: CompiledGrammar, end_token_ids: Sequence[int], vocab_size: int) -> float:
    rng = random.Random(_SEED)
    worst_ns = 0
    bits = torch.empty(1, -(-vocab_size // 32), dtype=torch.int32)
    for is_random in (False, True):
        matcher = compiled.start(end_token_ids)
        for _ in range(_NUM_STEPS):
            began_ns = time.thread_time_ns()
            matcher.fill_mask(bits, 0)
            mask_ns = time.thread_time_ns() - began_ns
            token_id = _choose(bits.numpy(), end_token_ids, rng if is_random else None)
            accept_ns = 0 if token_id is None else _accept_ns(matcher, token_id)
            worst_ns = max(worst_ns, mask_ns + accept_ns)
            if token_id is None or worst_ns > CHEAP.token_s * 1e9:
                break
    return worst_ns / 1e9


def _accept_ns(matcher: Matcher, token_id: int) -> int:
    began_ns = time.thread_time_ns()
    matcher.accept(token_id)
    return time.thread_time_ns() - began_ns


def _choose(
    bits: NDArray[np.int32], end_token_ids: Sequence[int], rng: random.Random | None
) -> int | None:
    """Return an allowed token; None if only an end token is allowed."""
    allowed = np.unpackbits(bits[0].view(np.uint8), bitorder="little").nonzero()[0]
    inner = allowed[~np.isin(allowed, end_token_ids)]
    if not inner.size:
        return None
    return int(inner[0] if rng is None else inner[rng.randrange(inner.size)])
