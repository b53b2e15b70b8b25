"""Beam search: which beams go on after a step, and which have ended. Knows no model and no text.

It decides as `generate(num_beams=...)` of transformers 5 does, whose rules these are: of all
continuations of all beams the best are kept; those among the best `width` that end the answer are
scored by log probability over length to the power of `length_penalty`; the best others go on. Where
two scores are equal, the better beam of the step before comes first; transformers leaves that open.

A beam needs no more of its continuations than `width` that go on and those that end it, so a step
asks for `num_candidates` log probabilities per beam and never for a vocabulary of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from shared.errors import InvalidRequestError
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What a caller wants to remember of a position.
T = TypeVar("T")

#: Fields that change logits or end answers in ways that beams know nothing of, with the values that
#: say nothing. They are fields of `SamplingParams` or of the router's own record of parameters.
#: Alternatives per token that workers of every version return.
MAX_CANDIDATES = 20
_UNUSABLE: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (None, 1.0),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "allowed_token_ids": (None,),
    "bad_words": ((),),
    "bad_words_token_ids": ((),),
    "stop": ((),),
    "extra_args": ({},),
    "grammar": (None,),
    "repetition_detection": (None,),
    "logprob_token_ids": (None,),
    "return_hidden_states": (False,),
    "thinking_token_budget": (None,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamOptions:
    """How to search; what an answer is, `SamplingParams` says."""

    #: Beams that are kept.
    width: int
    #: An answer's log probability is divided by its length to this power: over 0 favours long ones.
    length_penalty: float = 1.0
    #: True: end with the first `width` answers. False: also as soon as no running beam of the
    #: present length would beat the worst of them. "never": only if none could at any length.
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if self.width < 1:
            raise InvalidRequestError(f"a beam search needs a beam, not {self.width}", param="n")
        if not abs(self.length_penalty) <= 100:
            message = f"length_penalty must be between -100 and 100, not {self.length_penalty}"
            raise InvalidRequestError(message, param="length_penalty")


@dataclass(frozen=True, slots=True)
class Candidate(Generic[T]):
    """A token that may follow a beam."""

    token_id: int
    #: Natural log probability by the raw logits.
    logprob: float
    detail: T


@dataclass(frozen=True, slots=True)
class Beam(Generic[T]):
    """Tokens of an answer, or of what may become one."""

    token_ids: tuple[int, ...] = ()
    #: Sum of the tokens' log probabilities.
    logprob: float = 0.0
    details: tuple[T, ...] = ()
    #: Of an answer: what it is ranked by.
    score: float = 0.0
    #: The end or stop token that ended it, its last one; None: it is as long as it may be.
    stop_token_id: int | None = None

    def extended(self, candidate: Candidate[T]) -> Beam[T]:
        """This beam with one more token."""
        return Beam(
            (*self.token_ids, candidate.token_id),
            self.logprob + candidate.logprob,
            (*self.details, candidate.detail),
        )


class BeamSearch(Generic[T]):
    """One search. While not `is_done`, compute what may follow each of `running`, and `advance`."""

    def __init__(self, options: BeamOptions, sampling: SamplingParams) -> None:
        """Of `sampling`, lengths and final tokens count; see `check_beam_search`."""
        self._options = options
        self._sampling = sampling
        self._final_token_ids = sampling.final_token_ids
        #: How many of a beam's most likely continuations a step needs.
        self.num_candidates = _num_candidates(options, sampling)
        #: Best first, all of one length.
        self.running: list[Beam[T]] = [Beam()]
        #: Best first, at most `width`.
        self.answers: list[Beam[T]] = []
        self.is_done = False

    @property
    def num_tokens(self) -> int:
        """Length of the running beams."""
        return len(self.running[0].token_ids) if self.running else 0

    def step_sampling(self) -> SamplingParams:
        """How to compute a step: the next token of each beam, whose own choice is not used.

        The beams' tokens are resumed output; `max_tokens` counts them.
        """
        return SamplingParams(
            max_tokens=self.num_tokens + 1,
            temperature=0.0,
            ignore_eos=True,
            logprobs=self.num_candidates,
        )

    def advance(self, candidates: Sequence[Sequence[Candidate[T]]]) -> None:
        """Take a step: `candidates` has the most likely continuations of each running beam."""
        width, num_tokens = self._options.width, self.num_tokens + 1
        may_stop = num_tokens > self._sampling.min_tokens
        is_last = num_tokens >= self._sampling.max_tokens
        pool = [
            beam.extended(candidate)
            for beam, ways in zip(self.running, candidates, strict=True)
            for candidate in ways
            if math.isfinite(candidate.logprob)
            and (may_stop or candidate.token_id not in self._final_token_ids)
        ]
        pool.sort(key=lambda beam: -beam.logprob)
        kept = pool[: max(2, 1 + len(self._final_token_ids)) * width]
        self.running = [] if is_last else [b for b in kept if not self._stops(b)][:width]
        # Whatever ends behind the best `width` only made room for beams that go on.
        ended = [self._answer(b) for b in kept[:width] if is_last or self._stops(b)]
        self.answers = sorted([*self.answers, *ended], key=lambda beam: -beam.score)[:width]
        self.is_done = not self.running or not self._may_improve(num_tokens)

    def _stops(self, beam: Beam[T]) -> bool:
        return beam.token_ids[-1] in self._final_token_ids

    def _answer(self, beam: Beam[T]) -> Beam[T]:
        return Beam(
            beam.token_ids,
            beam.logprob,
            beam.details,
            score=self._score(beam, len(beam.token_ids)),
            stop_token_id=beam.token_ids[-1] if self._stops(beam) else None,
        )

    def _score(self, beam: Beam[T], num_tokens: int) -> float:
        return float(beam.logprob / num_tokens**self._options.length_penalty)

    def _may_improve(self, num_tokens: int) -> bool:
        """Whether a running beam may still become one of the answers."""
        options = self._options
        if len(self.answers) < options.width:
            return True
        if options.early_stopping is True:
            return False
        if options.early_stopping == "never" and options.length_penalty > 0:
            num_tokens = self._sampling.max_tokens
        return self._score(self.running[0], num_tokens) > self.answers[-1].score


def check_beam_search(options: BeamOptions, sampling: SamplingParams, *, n: int) -> None:
    """Refuse what a beam search cannot do.

    Raises:
        InvalidRequestError: there are more answers than beams, or more beams than engines keep
            alternatives for.
    """
    if n > options.width:
        message = f"best_of must be at least n, which is {n}, not {options.width}"
        raise InvalidRequestError(message, param="best_of")
    largest = MAX_CANDIDATES - len(sampling.final_token_ids)
    if _num_candidates(options, sampling) > MAX_CANDIDATES:
        message = (
            f"a beam search with {len(sampling.final_token_ids)} end and stop tokens can have at "
            f"most {largest} beams, not {options.width}"
        )
        raise InvalidRequestError(message, param="best_of")


def require_no_constraints(params: Any) -> None:
    """Refuse parameters that a beam search would have to ignore.

    Raises:
        InvalidRequestError: `param` names the first one.
    """
    for name, nothing in _UNUSABLE.items():
        if getattr(params, name, nothing[0]) not in nothing:
            message = f"{name} cannot be used with beam search"
            raise InvalidRequestError(message, param=name)


def _num_candidates(options: BeamOptions, sampling: SamplingParams) -> int:
    return options.width + len(sampling.final_token_ids)
