"""The time of a prompt whose worker decodes beside it: its chunks ride on the steps of others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.engine.timing.step_bound import prompt_room_ms


@dataclass(frozen=True, slots=True)
class Beside:
    """A prompt's computation beside sequences that decode. Times in milliseconds."""

    #: Until it is computed, in addition to its own computation: the steps' other work.
    stretch_ms: float = 0.0
    #: The longest step with one of its chunks.
    step_ms: float = 0.0
    #: What each sequence without a bound waits because of it.
    delay_ms: float = 0.0
    #: Whether the sequences' bound leaves time for chunks.
    fits: bool = True


def beside(
    prefill_ms: float,
    *,
    num_decoding: float,
    num_unbounded: float,
    itl_ms: float,
    bound_ms: float | None,
    least_ms: float,
    num_left: float = math.inf,
) -> Beside:
    """Return the time of a prompt of `prefill_ms` beside steps that last `itl_ms` without it.

    Its chunks are the largest that keep each step within the limit that the worker's engine sets:
    see `_limit_ms`, also for `least_ms`. The number of steps is not rounded up: more sequences must
    not make the prompt look cheaper. `num_left`: tokens that each sequence is expected to write.
    Behind them nothing is beside the prompt.
    """
    if not num_decoding:
        return Beside(step_ms=prefill_ms)
    room_ms = _limit_ms(num_unbounded, itl_ms, bound_ms, least_ms) - itl_ms
    if room_ms <= 0:
        return Beside(fits=False)
    num_steps = min(max(1.0, prefill_ms / room_ms), num_left)
    delay_ms = min(prefill_ms, num_left * room_ms)
    return Beside(num_steps * itl_ms, itl_ms + min(room_ms, prefill_ms), delay_ms)


def alone_ms(
    took_ms: float,
    *,
    num_decoding: float,
    num_unbounded: float,
    itl_ms: float,
    bound_ms: float | None,
    least_ms: float,
    num_left: float = math.inf,
) -> float:
    """Return what a prompt that took `took_ms` in such steps takes alone: the inverse."""
    if not num_decoding:
        return took_ms
    limit_ms = _limit_ms(num_unbounded, itl_ms, bound_ms, least_ms)
    if limit_ms <= itl_ms:
        return took_ms
    num_steps = min(max(1.0, took_ms / limit_ms), num_left)
    return max(took_ms - num_steps * itl_ms, 0.0)


def _limit_ms(
    num_unbounded: float, itl_ms: float, bound_ms: float | None, least_ms: float
) -> float:
    """Return the longest step: see shared/engine/schedule/chunk_limit.py.

    `bound_ms`: the tightest bound of the sequences, if any has one. `num_unbounded`: those without,
    whose step has `prompt_room_ms` of prompts. `least_ms`: of a step of one sequence.
    """
    limit_ms = math.inf if bound_ms is None else bound_ms
    if num_unbounded:
        limit_ms = min(limit_ms, itl_ms + prompt_room_ms(itl_ms, least_ms))
    return limit_ms
