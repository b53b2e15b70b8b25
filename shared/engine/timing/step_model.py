"""The time of a step as a function of its work, learnt from the steps of this engine.

ms = a + b · decoding tokens + c · their KV tokens + g · prompt tokens + h · pairs, a pair being a
prompt token and a token that it attends to. No coefficient is negative: more work never takes less
time.

Least squares on relative errors, after Huber ("Robust estimation of a location parameter", 1964):
errors over a multiple of the median error count less. Old steps are forgotten exponentially. What
recent steps do not show stays as it was: every coefficient is held at its last value with a small
weight. So a worker that computes no prompt for an hour still knows what one costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shared.engine.timing.step_work import num_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.engine.timing.step_work import StepWork

_SIZE: Final = 5
_FIELDS: Final = range(_SIZE)
#: A new step multiplies the weight of those before it: about the last hundred count.
_KEEP: Final = 0.99
#: Weight of a coefficient's last value, in steps.
_HOLD: Final = 1e-3
#: Steps that are believed as they are: the prior may be wrong by orders of magnitude.
_FIRST_STEPS: Final = 8
#: Errors of more than this number of median errors count less.
_HUBER: Final = 2.5
_MEDIAN_STEP: Final = 1.1
_MEDIAN_BOUNDS: Final = (0.01, 1.0)
#: Steps of which each is observed and decides at once, before there are many.
_MANY_STEPS: Final = 32
#: Afterwards, of the steps without prompts one in this number is observed.
_PLAIN_EVERY: Final = 4
#: The sum is solved anew after observations of this value; a step with prompts is worth more.
_SOLVE_AT: Final = 8
_PROMPT_VALUE: Final = 4
#: No step takes less than this share of the prior's.
_LEAST: Final = 1e-3
#: Shorter steps [ms] are none.
_SHORTEST: Final = 1e-3
#: A time over this multiple of the expected one is an error of that size, and no larger.
_MOST_ERROR: Final = 100.0


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds, each at least 0."""

    per_step: float
    per_decoding: float
    per_context: float
    per_prompt: float
    per_pair: float

    def __iter__(self) -> Iterator[float]:
        yield from (self.per_step, self.per_decoding, self.per_context)
        yield from (self.per_prompt, self.per_pair)

    def step_ms(self, work: StepWork) -> float:
        """Return the time of a step."""
        return (
            self.per_step
            + self.per_decoding * work.num_decoding
            + self.per_context * work.num_context
            + self.per_prompt * work.num_prompt
            + self.per_pair * work.num_pairs
        )

    def more_ms(self, num_tokens: int, context: int) -> float:
        """Return what prompt tokens behind `context` others add to a step."""
        return self.per_prompt * num_tokens + self.per_pair * num_pairs(num_tokens, context)

    def num_tokens_in(self, ms: float, context: int, most: int) -> int:
        """Return how many prompt tokens add at most `ms` to a step; `most` at most.

        This is the inverse of `more_ms`: one token more would add more than `ms`.
        """
        if self.more_ms(most, context) <= ms:
            return most
        if ms <= 0:
            return 0
        # The root of per_pair / 2 · n² + linear · n = ms, in the form that divides by no zero.
        linear = self.per_prompt + self.per_pair * context
        root = (linear * linear + 2 * self.per_pair * ms) ** 0.5
        num = min(most, max(0, int(2 * ms / (linear + root))))
        while num > 0 and self.more_ms(num, context) > ms:  # by rounding
            num -= 1
        while num < most and self.more_ms(num + 1, context) <= ms:
            num += 1
        return num


#: Before any step: those of a small model on a few cores, which is careful on faster machines.
PRIOR: Final = StepCost(2.0, 0.1, 1e-4, 0.1, 1e-6)


class StepModel:
    """Learns `cost` from measured steps. One per engine, in its thread; it reads no clock."""

    def __init__(self, prior: StepCost = PRIOR) -> None:
        """Start from the prior, whose coefficients are all greater than 0."""
        self._units = tuple(prior)
        #: The present estimate.
        self.cost = prior
        #: Steps that were observed.
        self.num_steps = 0
        #: The median relative error of the latest predictions.
        self.median_error = 0.25
        # Fields are in units of the prior's milliseconds, so that the multipliers are about 1.
        self._multipliers = [1.0] * _SIZE
        self._products = [[0.0] * _SIZE for _ in _FIELDS]
        self._targets = [0.0] * _SIZE
        self._unsolved = 0
        self._num_skipped = 0

    def wants(self, *, has_prompts: bool) -> bool:
        """Return whether the next step is worth its observation, which takes microseconds.

        Call it once per step.
        """
        if has_prompts or self.num_steps < _MANY_STEPS:
            return True
        self._num_skipped = (self._num_skipped + 1) % _PLAIN_EVERY
        return not self._num_skipped

    def observe(self, work: StepWork, took_ms: float) -> None:
        """Learn from a step; one of less than a microsecond is ignored."""
        if not took_ms >= _SHORTEST:
            return
        weight, size_ms = self._judge(self.cost.step_ms(work), took_ms)
        step, decoding, context, prompt, pair = self._units
        row = (
            step / size_ms,
            decoding * work.num_decoding / size_ms,
            context * work.num_context / size_ms,
            prompt * work.num_prompt / size_ms,
            pair * work.num_pairs / size_ms,
        )
        target = took_ms / size_ms
        targets = self._targets
        for i, value in enumerate(row):
            products, weighted = self._products[i], weight * value
            for j in range(i + 1):
                products[j] = _KEEP * products[j] + weighted * row[j]
            targets[i] = _KEEP * targets[i] + weighted * target
        self.num_steps += 1
        self._unsolved += _PROMPT_VALUE if work.num_prompt else 1
        if self._unsolved >= _SOLVE_AT or self.num_steps <= _MANY_STEPS:
            self._solve()

    def _judge(self, expected_ms: float, took_ms: float) -> tuple[float, float]:
        """Return the weight of a step, and the size of which its error is a share."""
        expected_ms = max(expected_ms, took_ms / _MOST_ERROR)
        error = abs(took_ms - expected_ms) / expected_ms
        if self.num_steps < _FIRST_STEPS:
            return 1.0, took_ms
        weight = 1.0 if error <= (most := _HUBER * self.median_error) else most / error
        step = _MEDIAN_STEP if error > self.median_error else 1 / _MEDIAN_STEP
        low, high = _MEDIAN_BOUNDS
        self.median_error = min(high, max(low, self.median_error * step))
        return weight, expected_ms

    def _solve(self) -> None:
        """Solve for the multipliers; those that would be negative are zero."""
        self._unsolved = 0
        matrix = [
            [self._products[max(i, j)][min(i, j)] + (_HOLD if i == j else 0.0) for j in _FIELDS]
            for i in _FIELDS
        ]
        targets = [self._targets[i] + _HOLD * self._multipliers[i] for i in _FIELDS]
        active = list(_FIELDS)
        while True:
            found = _solution(matrix, targets, active)
            worst = min(active, key=found.__getitem__)
            if found[worst] >= 0 or len(active) == 1:
                break
            active.remove(worst)
        self._multipliers = [max(_LEAST, found[0]), *(max(0.0, value) for value in found[1:])]
        pairs = zip(self._multipliers, self._units, strict=True)
        self.cost = StepCost(*(multiplier * unit for multiplier, unit in pairs))


def _solution(matrix: list[list[float]], targets: list[float], active: list[int]) -> list[float]:
    """Return the solution of the active rows of a positive definite system; 0 for the others."""
    rows = [[*(matrix[i][j] for j in active), targets[i]] for i in active]
    size = len(rows)
    for pivot in range(size):
        top = rows[pivot]
        for below in range(pivot + 1, size):
            row, factor = rows[below], rows[below][pivot] / top[pivot]
            for column in range(pivot + 1, size + 1):
                row[column] -= factor * top[column]
    found = [0.0] * len(targets)
    for pivot in reversed(range(size)):
        row, value = rows[pivot], rows[pivot][size]
        for column in range(pivot + 1, size):
            value -= row[column] * found[active[column]]
        found[active[pivot]] = value / row[pivot]
    return found
