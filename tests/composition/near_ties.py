"""What the last bits of keys and values do to log probabilities, once they are rounded to 8 bits.

The last bits of PyTorch's sums depend on the rows beside them: one row, or two or three of a draft,
are multiplied by other code than more. A key that lies between two numbers of 8 bits, nearer to
their middle than such a bit, is rounded to either. That is a whole step, and moves log
probabilities by more than a thousand sums do.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from kernels.kv_write import reference
from tests.e2e.stream import expected, sampling_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from shared.engine.llm import LLM
    from shared.request.answer import PositionLogprobs
    from tests.e2e.stream import Stream

#: Of a row's largest number: four last bits of float32. That is by how much half of the rows differ
#: that another number of rows computes; the most is 17.
NEAR = 2.0**-21


def distance_to_itself(engine: LLM, stream: Stream) -> float:
    """By how much a log probability differs if what is so near to a tie is rounded otherwise.

    Counts tokens up to the first that is another one. The larger distance of rounding up and down.
    """
    (usual,) = expected(engine, stream)
    found = 0.0
    for share in (NEAR, -NEAR):
        moved = _answer(engine, stream, share)
        for one, other in zip(usual.logprobs, moved, strict=True):
            found = max(found, abs(one.chosen.logprob - other.chosen.logprob))
            if one.chosen.token_id != other.chosen.token_id:
                break
    return found


def _answer(engine: LLM, stream: Stream, share: float) -> tuple[PositionLogprobs, ...]:
    """The engine's, with rows to which a share of their largest number is added before rounding."""
    engine.engine.reset_prefix_cache()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("quantize_rows", "quantize_rows_by"):
                patch.setattr(reference, name, _after(partial(_moved, share), name))
            (request,) = engine.generate(
                [stream.prompt], sampling_of(stream), adapter=stream.adapter
            )
    finally:
        engine.engine.reset_prefix_cache()
    return request.outputs[0].logprobs


def _moved(share: float, rows: Tensor) -> Tensor:
    return rows + share * rows.abs().amax(dim=-1, keepdim=True)


def _after(move: Callable[[Tensor], Tensor], name: str) -> Callable[..., Any]:
    """The function of this name, given moved rows."""
    usual = getattr(reference, name)
    return lambda rows, *others: usual(move(rows), *others)
