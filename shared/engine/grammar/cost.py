"""What a grammar costs, measured where it can hold up nothing."""

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

#: Tokens of each walk through a grammar.
_NUM_STEPS = 32
_SEED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarCost:
    """Processor time and memory."""

    compile_s: float
    size_bytes: int
    #: Of the slowest token: its mask, and going on by it.
    token_s: float

    def is_within(self, limits: GrammarCost) -> bool:
        """Whether it costs no more, in any way."""
        return (
            self.compile_s <= limits.compile_s
            and self.size_bytes <= limits.size_bytes
            and self.token_s <= limits.token_s
        )


#: A grammar within this is compiled and followed in the worker itself. JSON of any kind is, up to
#: vocabularies of 256 Ki tokens.
CHEAP = GrammarCost(compile_s=0.25, size_bytes=2 << 20, token_s=0.0005)
#: A token of such a grammar that takes longer after all is late. The machine may have caused that.
#: The grammar is not cheap if another of the next `LATE_WINDOW` calls is late, or one is by far.
LATE_NS = 2_000_000
FAR_TOO_LATE_NS = 25 * LATE_NS
LATE_WINDOW = 64


def measure_token_s(
    compiled: CompiledGrammar, end_token_ids: Sequence[int], vocab_size: int
) -> float:
    """The slowest token of two walks: always the first token that may come, and any of them.

    A walk ends where the grammar is not cheap. What is slow once, and not again, is not counted.
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
    """A token that may come. None if only an end may: nothing is behind it."""
    allowed = np.unpackbits(bits[0].view(np.uint8), bitorder="little").nonzero()[0]
    inner = allowed[~np.isin(allowed, end_token_ids)]
    if not inner.size:
        return None
    return int(inner[0] if rng is None else inner[rng.randrange(inner.size)])
