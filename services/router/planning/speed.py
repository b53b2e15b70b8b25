"""How fast a worker is, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from services.router.workers.timing.profile import DECODE_PRIOR, PREFILL_PRIOR

#: Of a worker's pool before one has registered.
KV_TOKENS_PRIOR = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Milliseconds of a worker's work, and its room. See `WorkerProfile`, which measures them."""

    #: Per prompt, per 1000 tokens, per million pairs of token and token before it.
    prefill: tuple[float, float, float]
    #: Per step, per sequence in the batch, per 1000 tokens in the batch.
    decode: tuple[float, float, float]
    kv_tokens: int
    max_sequences: int = 256

    @classmethod
    def prior(cls) -> Speed:
        """Return what a router assumes before it has measured anything."""
        return cls(prefill=PREFILL_PRIOR, decode=DECODE_PRIOR, kv_tokens=KV_TOKENS_PRIOR)

    def prefill_ms(self, num_tokens: float, num_held: float = 0.0) -> float:
        """Return the time to compute a prompt whose first `num_held` tokens are there."""
        each, per_token, per_pair = self.prefill
        num_computed = max(num_tokens - num_held, 1)
        num_pairs = num_computed * (num_tokens + num_held) / 2
        return each + per_token * num_computed / 1e3 + per_pair * num_pairs / 1e6

    def step_ms(self, num_sequences: float, num_tokens: float) -> float:
        """Return the time of a decode step for a batch with `num_tokens` in all."""
        each, per_sequence, per_token = self.decode
        return each + per_sequence * num_sequences + per_token * num_tokens / 1e3

    def per_sequence_ms(self, context: float) -> float:
        """Return what one more sequence of `context` tokens adds to a step."""
        return self.decode[1] + self.decode[2] * context / 1e3
