"""The speed of one worker, learned from its answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from services.router.workers.timing.fit import RobustFit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Milliseconds: per prompt, per 1000 tokens, per million pairs of token and token before it.
PREFILL_PRIOR = (5.0, 50.0, 1.0)
#: Milliseconds: per step, per sequence in the batch, per 1000 tokens in the batch.
DECODE_PRIOR = (10.0, 0.5, 0.1)
#: Milliseconds: per transfer, per 1e6 bytes (this is 1 GB/s).
TRANSFER_PRIOR = (1.0, 1.0)
#: The same of the part of a hand-off that the computation does not hide: most is sent meanwhile.
EXPOSED_PRIOR = (2.0, 0.1)
BYTES_PER_TOKEN_PRIOR = 16_384.0
#: Weight of the fleet's coefficients in measurements. A few slow answers of one worker must not
#: send all requests to its twins, which hold nothing; a slower worker shows it in some dozen.
FLEET_WEIGHT = 5.0
#: After this time without a measurement a worker has the fleet's coefficients again. Otherwise a
#: worker that was slow once would get no request that could show that it is not slow any more.
STALE_S = 10.0


class WorkerProfile:
    """Milliseconds for a worker's three kinds of work.

    With a `fleet`, the profile of all workers of its role, a new worker starts with the fleet's
    coefficients. Each measurement updates the fleet first, so that a worker's first answer is not
    weighed against a prior without measurements.
    """

    def __init__(
        self,
        fleet: WorkerProfile | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        stale_s: float = STALE_S,
    ) -> None:
        """`stale_s`: how long a measurement counts; afterwards the fleet's coefficients do."""
        self._fleet = fleet
        self._bytes_per_token: float | None = None
        if fleet is None:
            self._prefill = RobustFit(lambda: PREFILL_PRIOR)
            self._decode = RobustFit(lambda: DECODE_PRIOR)
            self._transfer = RobustFit(lambda: TRANSFER_PRIOR)
            self._exposed = RobustFit(lambda: EXPOSED_PRIOR)
        else:
            self._prefill = _member(fleet._prefill, PREFILL_PRIOR, clock, stale_s)
            self._decode = _member(fleet._decode, DECODE_PRIOR, clock, stale_s)
            self._transfer = _member(fleet._transfer, TRANSFER_PRIOR, clock, stale_s)
            self._exposed = _member(fleet._exposed, EXPOSED_PRIOR, clock, stale_s)

    @property
    def num_measurements(self) -> int:
        """Number of prompts that were measured."""
        return self._prefill.num_measurements

    @property
    def prefill_coefficients(self) -> tuple[float, float, float]:
        """Milliseconds per prompt, per 1000 tokens, per million pairs of tokens."""
        each, per_token, per_pair = self._prefill.coefficients
        return each, per_token, per_pair

    @property
    def decode_coefficients(self) -> tuple[float, float, float]:
        """Milliseconds per step, per sequence, per 1000 tokens in the batch."""
        each, per_sequence, per_token = self._decode.coefficients
        return each, per_sequence, per_token

    @property
    def num_decode_measurements(self) -> int:
        """Number of answers that were measured."""
        return self._decode.num_measurements

    @property
    def bytes_per_token(self) -> float:
        """KV bytes of one token."""
        if self._bytes_per_token is not None:
            return self._bytes_per_token
        return BYTES_PER_TOKEN_PRIOR if self._fleet is None else self._fleet.bytes_per_token

    def prefill_ms(self, num_tokens: int, num_held: int) -> float:
        """Return the expected time to compute a prompt whose first `num_held` tokens are held."""
        # Written out: this runs for every worker and every request.
        each, per_token, per_pair = self._prefill.coefficients
        num_computed = max(num_tokens - num_held, 1)
        num_pairs = num_computed * (num_tokens + num_held) / 2
        return each + per_token * num_computed / 1e3 + per_pair * num_pairs / 1e6

    def itl_ms(self, num_sequences: float, num_tokens: float) -> float:
        """Return the expected time of a decode step for a batch with `num_tokens` in all."""
        each, per_sequence, per_token = self._decode.coefficients
        return each + per_sequence * num_sequences + per_token * num_tokens / 1e3

    def transfer_ms(self, num_tokens: int) -> float:
        """Return the expected time to move the KV of `num_tokens`."""
        if num_tokens <= 0:
            return 0.0
        each, per_megabyte = self._transfer.coefficients
        return each + per_megabyte * num_tokens * self.bytes_per_token / 1e6

    def exposed_ms(self, num_tokens: int) -> float:
        """Return the expected time between a first token from elsewhere and the prompt's KV."""
        if num_tokens <= 0:
            return 0.0
        each, per_megabyte = self._exposed.coefficients
        return each + per_megabyte * num_tokens * self.bytes_per_token / 1e6

    def observe_prefill(self, num_tokens: int, num_held: int, ms: float) -> None:
        """Learn from the time of one prompt."""
        num_computed = max(num_tokens - num_held, 1)
        num_pairs = num_computed * (num_tokens + num_held) / 2
        if self._fleet is not None:
            self._fleet.observe_prefill(num_tokens, num_held, ms)
        self._prefill.observe((1.0, num_computed / 1e3, num_pairs / 1e6), ms)

    def observe_decode(self, num_sequences: float, num_tokens: float, ms: float) -> None:
        """Learn from the time of one decode step."""
        if self._fleet is not None:
            self._fleet.observe_decode(num_sequences, num_tokens, ms)
        self._decode.observe((1.0, num_sequences, num_tokens / 1e3), ms)

    def observe_exposed(self, num_tokens: int, ms: float) -> None:
        """Learn from the part of a hand-off that its computation did not hide."""
        if self._fleet is not None:
            self._fleet.observe_exposed(num_tokens, ms)
        self._exposed.observe((1.0, num_tokens * self.bytes_per_token / 1e6), ms)

    def observe_transfer(self, num_tokens: int, num_bytes: int, ms: float) -> None:
        """Learn from the size and time of one transfer."""
        if num_tokens <= 0 or num_bytes <= 0:
            return
        self._bytes_per_token = num_bytes / num_tokens
        if self._fleet is not None:
            self._fleet.observe_transfer(num_tokens, num_bytes, ms)
        self._transfer.observe((1.0, num_bytes / 1e6), ms)


def _member(
    fleet: RobustFit, prior: tuple[float, ...], clock: Callable[[], float], stale_s: float
) -> RobustFit:
    return RobustFit(
        _Positive(fleet, prior), prior_weight=FLEET_WEIGHT, stale_s=stale_s, clock=clock
    )


class _Positive:
    """The fleet's coefficients, kept above 0 so that they do not fix a worker's at 0.

    They are computed when the fleet's change: every request reads them for every worker.
    """

    def __init__(self, fit: RobustFit, prior: tuple[float, ...]) -> None:
        self._fit = fit
        self._prior = prior
        self._read: Sequence[float] | None = None
        self._positive: tuple[float, ...] = prior

    def __call__(self) -> tuple[float, ...]:
        found = self._fit.coefficients
        if found is not self._read:
            pairs = zip(found, self._prior, strict=True)
            self._positive = tuple(max(value, 0.01 * known) for value, known in pairs)
            self._read = found
        return self._positive
