"""What both attention kernels compute with scores, in Triton.

A kernel's scores are powers of two: its exp2(score) is e to the score of `Scores`.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def cap_scores(scores, softcap):
    """Return c * tanh(score / c) of each score; the cap c is that of `Scores`."""
    # tanh(x) is 1 - 2 / (exp(2x) + 1), also where exp(2x) becomes 0 or infinite.
    grown = tl.exp2(scores * (2.0 / softcap))
    return (1.0 - 2.0 / (grown + 1.0)) * (softcap * _LOG2_E)


@triton.jit
def load_sinks(sinks, head, exists):
    """Return the sinks of some heads; 0 for those that do not exist."""
    return tl.load(sinks + head, mask=exists, other=0.0) * _LOG2_E
