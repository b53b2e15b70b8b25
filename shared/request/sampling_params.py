"""How to choose the next token. Token ids only: text becomes ids in the router."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shared.errors import InternalError, InvalidRequestError
from shared.request.extra_args import check_extra_args
from shared.request.logprobs_mode import LogprobsMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.request.extra_args import ExtraArg
    from shared.request.grammar.spec import GrammarSpec
    from shared.request.thinking_budget import ThinkingBudget

#: Below this temperature the argmax is taken, as vLLM does.
GREEDY_TEMPERATURE = 1e-5
#: As in vLLM.
MAX_LOGPROB_TOKEN_IDS = 128


def read_seed(seed: int | None) -> int | None:
    """What an API was given as a seed, without its sign; None for -1, as in vLLM: a fresh one.

    Signed and unsigned numbers of the same 64 bits are the same seed.
    """
    if seed is None or seed == -1:
        return None
    return seed % 2**64 if -(2**63) <= seed < 0 else seed


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one sequence, with vLLM's names and meanings.

    The random number for the token at absolute position i is a function of (seed, sample_index, i)
    alone, so the same request gives the same tokens on one worker, over a hand-off, after a
    preemption and after a migration.

    Every API may give `seed` and `top_k` as they came: as in vLLM, -1 means no seed and no `top_k`.
    Another negative `seed` becomes the unsigned number of the same 64 bits.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    #: Tokens that end the answer: the model's own end tokens and the request's, see `ignore_eos`.
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    #: None: a fresh one for each request; an `EngineRequest` that draws tokens has one.
    seed: int | None = None
    #: Which of the `n` answers this sequence is; part of the random stream.
    sample_index: int = 0
    #: Number of alternatives per output token; None: no logprobs, 0: the sampled token only.
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    #: Alternatives of the output by name, in this order, instead of the `logprobs` best ones.
    logprob_token_ids: tuple[int, ...] | None = None
    #: What `logprobs` and `prompt_logprobs` are.
    logprobs_mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS
    #: Return the rows that the tokens' logits came from: see shared/request/hidden_states.py.
    return_hidden_states: bool = False
    #: What the answer must look like. `ignore_eos` says nothing then: an end token comes where the
    #: grammar allows it, and ends the answer.
    grammar: GrammarSpec | None = None
    #: Bound on the reasoning before the answer.
    thinking_budget: ThinkingBudget | None = None
    #: Most tokens that are guessed per step; 0: none. None: what the engine is set to.
    num_speculative_tokens: int | None = None
    #: For custom logits processors; see shared/request/extra_args.py for what it may hold.
    extra_args: Mapping[str, ExtraArg] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", read_seed(self.seed))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        for name, ok, rule in self._rules():
            if not ok:
                raise InvalidRequestError(
                    f"{name} must be {rule}, not {getattr(self, name)!r}", param=name
                )
        if self.extra_args:
            check_extra_args(self.extra_args)

    @property
    def fixed_seed(self) -> int:
        """The seed. Raises InternalError if tokens are drawn and it was never fixed."""
        if self.seed is not None:
            return self.seed
        if self.is_greedy:
            return 0  # it is never looked at
        raise InternalError("tokens cannot be drawn: the request has no seed")

    def with_seed(self) -> SamplingParams:
        """The same with a seed: a fresh one, unless there is one or none is needed."""
        if self.seed is not None or self.is_greedy:
            return self
        return replace(self, seed=secrets.randbits(64))

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that were seen before are treated differently."""
        return bool(
            self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty
        )

    @property
    def changes_logits(self) -> bool:
        """Whether anything but temperature, filters and custom processors touches the logits."""
        return bool(
            self.grammar is not None
            or self.thinking_budget is not None
            or self.allowed_token_ids is not None
            or self.bad_words_token_ids
            or self.min_tokens
            or self.logit_bias
            or self.has_penalties
        )

    @property
    def final_token_ids(self) -> frozenset[int]:
        """Tokens that end the sequence, and that `min_tokens` holds back."""
        eos = () if self.ignore_eos and self.grammar is None else self.eos_token_ids
        return frozenset(eos) | frozenset(self.stop_token_ids)

    def _rules(self) -> tuple[tuple[str, bool, str], ...]:
        def finite(*values: float) -> bool:
            return all(math.isfinite(v) for v in values)

        def logprobs_ok(value: int | None) -> bool:
            return value is None or value >= 0

        return (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            (
                "temperature",
                finite(self.temperature) and self.temperature >= 0,
                "a number of at least 0",
            ),
            ("top_k", self.top_k >= 0, "at least 0 (0 and -1 turn it off)"),
            ("top_p", 0 < self.top_p <= 1, "over 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 and 1"),
            (
                "repetition_penalty",
                finite(self.repetition_penalty) and self.repetition_penalty > 0,
                "over 0",
            ),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "between -2 and 2"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "between -2 and 2"),
            ("logit_bias", finite(*self.logit_bias.values()), "a map to finite numbers"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, "between 0 and max_tokens"),
            ("seed", self.seed is None or 0 <= self.seed < 2**64, "a number of 64 bits"),
            ("sample_index", self.sample_index >= 0, "at least 0"),
            ("logprobs", logprobs_ok(self.logprobs), "at least 0"),
            ("prompt_logprobs", logprobs_ok(self.prompt_logprobs), "at least 0"),
            (
                "logprob_token_ids",
                self.logprob_token_ids is None
                or (
                    self.logprobs is not None
                    and 0 < len(self.logprob_token_ids) <= MAX_LOGPROB_TOKEN_IDS
                ),
                f"1 to {MAX_LOGPROB_TOKEN_IDS} tokens, beside logprobs",
            ),
            (
                "num_speculative_tokens",
                self.num_speculative_tokens is None or self.num_speculative_tokens >= 0,
                "at least 0",
            ),
        )
