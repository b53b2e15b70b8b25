"""Conversion of a client's parameters to a worker's: defaults, limits, words to tokens."""

from __future__ import annotations

import math
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from shared.errors import InvalidRequestError
from shared.generation.grammar import check_grammar
from shared.generation.limits import ALL, DEFAULT_LIMITS, check_params
from shared.generation.params import GenerationParams
from shared.request.logprobs_mode import LogprobsMode
from shared.request.prompt_embeds import known_tokens
from shared.request.sampling_params import SamplingParams, read_seed
from shared.request.thinking_budget import PARAM as BUDGET
from shared.request.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shared.generation.limits import RequestLimits
    from shared.request.prompt_embeds import PromptEmbeds
    from shared.text.tokenizer import Tokenizer

T = TypeVar("T")

MAX_LOGIT_BIAS = 100.0
_UINT32 = 2**32
#: Requests whose bad words' tokens are kept.
_NUM_REQUESTS = 4
#: Parameters that are about texts.
_TEXTS = ("stop", "bad_words", "thinking_token_budget")
#: Parameters with the same name for clients and workers; None: the model's default, otherwise the
#: record's.
_SAME = frozenset(GenerationParams.__slots__) & frozenset(SamplingParams.__slots__)


class _Own:
    """The words of one request, whose prompts have the same tuple.

    Equal words of another request are others, so that no client can tell by the time what another
    one has asked.
    """

    __slots__ = ("words",)

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Own) and other.words is self.words

    def __hash__(self) -> int:
        return id(self.words)


class SamplingResolver:
    """Resolves parameters for one model: its tokenizer, its defaults, its number of tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        limits: RequestLimits = DEFAULT_LIMITS,
        logprobs_mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS,
    ) -> None:
        self._limits = limits
        self._logprobs_mode = logprobs_mode
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._words = lru_cache(_NUM_REQUESTS)(lambda own: self._bad_words(own.words))

    def resolve(
        self,
        params: GenerationParams,
        *,
        prompt_token_ids: Sequence[int],
        max_model_len: int,
        embeds: PromptEmbeds | None = None,
    ) -> SamplingParams:
        """Return the parameters of answer 0; those of other answers differ in `sample_index`.

        `embeds`: given in place of some of the prompt's tokens.

        Raises:
            InvalidRequestError: a value is wrong, or the prompt leaves no room; `param` names it.
        """
        self._check_prompt(prompt_token_ids, embeds, max_model_len)
        check_params(params, self._limits)
        self._check_texts(params)
        check_grammar(params.grammar)
        defaults = self._tokenizer.defaults
        same = {name: getattr(params, name) for name in _SAME}
        given = {
            name: getattr(defaults, name, None) if value is None else value
            for name, value in same.items()
        }
        given |= {
            "max_tokens": self._max_tokens(params, len(prompt_token_ids), max_model_len),
            "logprobs": self._num_logprobs(params.logprobs),
            "prompt_logprobs": self._num_logprobs(params.prompt_logprobs),
            "logprobs_mode": _first(params.logprobs_mode, self._logprobs_mode),
            "top_k": _top_k(given["top_k"]),
            "logit_bias": self._logit_bias(params.logit_bias),
            "allowed_token_ids": self._distinct(params.allowed_token_ids, "allowed_token_ids"),
            "logprob_token_ids": self._distinct(params.logprob_token_ids, "logprob_token_ids"),
            "bad_words_token_ids": self._words(_Own(params.bad_words)),
            "eos_token_ids": self._tokenizer.eos_token_ids,
            "stop_token_ids": tuple(self._in_vocabulary(params.stop_token_ids, "stop_token_ids")),
            "thinking_budget": self._thinking_budget(params),
            "seed": _first(read_seed(params.seed), secrets.randbits(64)),
        }
        return SamplingParams(**{k: v for k, v in given.items() if v is not None})

    def _check_prompt(
        self, ids: Sequence[int], embeds: PromptEmbeds | None, max_model_len: int
    ) -> None:
        if not ids:
            raise InvalidRequestError("the prompt has no tokens", param="prompt")
        known = ids if embeds is None else known_tokens(ids)
        if known:
            list(self._in_vocabulary((min(known), max(known)), "prompt"))
        if len(ids) >= max_model_len:
            message = (
                f"This model's maximum context length is {max_model_len} tokens. However, your "
                f"request has {len(ids)} input tokens. Please reduce the length of the prompt."
            )
            raise InvalidRequestError(message, param="prompt")

    def _check_texts(self, params: GenerationParams) -> None:
        """Refuse what needs the tokens' texts if they are unknown."""
        if params.grammar is not None:
            self._tokenizer.require_text(params.grammar.param)
        for name in _TEXTS:
            if getattr(params, name):
                self._tokenizer.require_text(name)

    def _max_tokens(
        self, params: GenerationParams, num_prompt_tokens: int, max_model_len: int
    ) -> int:
        room = max_model_len - num_prompt_tokens
        if params.max_tokens is None:
            # A default must not contradict the client's parameters.
            usual = max(_first(self._tokenizer.defaults.max_tokens, room), params.min_tokens)
            return min(room, usual, self._limits.max_output_tokens or room)
        if params.max_tokens > room:
            message = (
                f"max_tokens is too large: {params.max_tokens}. This model's maximum context "
                f"length is {max_model_len} tokens and your request has {num_prompt_tokens} "
                f"input tokens ({params.max_tokens} > {max_model_len} - {num_prompt_tokens})."
            )
            raise InvalidRequestError(message, param="max_tokens")
        return params.max_tokens

    def _num_logprobs(self, value: int | None) -> int | None:
        if value is None:
            return None
        return self._vocab_size if value == ALL else min(value, self._vocab_size)

    def _logit_bias(self, bias: Mapping[int, float]) -> dict[int, float]:
        """Return the biases, clamped as in vLLM. NaN stays, and is refused by later checks."""
        ids = self._in_vocabulary(bias, "logit_bias")
        return {i: _clamp(bias[i], MAX_LOGIT_BIAS) for i in ids}

    def _distinct(self, ids: tuple[int, ...] | None, param: str) -> tuple[int, ...] | None:
        if ids is None:
            return None
        if not ids:
            raise InvalidRequestError(f"{param} must not be empty", param=param)
        list(self._in_vocabulary((min(ids), max(ids)), param))
        return tuple(dict.fromkeys(ids))

    def _thinking_budget(self, params: GenerationParams) -> ThinkingBudget | None:
        num_tokens, thinking = params.thinking_token_budget, params.thinking
        if num_tokens is None:
            return None
        if thinking is None:
            message = f"{BUDGET} needs to know how the model marks its reasoning"
            raise InvalidRequestError(message, param=BUDGET)
        list(self._in_vocabulary((thinking.end_token_id,), BUDGET))
        return ThinkingBudget(max_tokens=num_tokens, thinking=thinking)

    def _bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return each word's tokens at the beginning of a text and after a space.

        A form after a space that ends with the tokens of the other form is redundant. vLLM omits
        every form of another length as well, and so misses ` fox` if `fox` has more tokens.
        """
        sequences: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = self._encode(word.lstrip())
            if not bare:
                message = f"bad_words must hold words, not {word!r}"
                raise InvalidRequestError(message, param="bad_words")
            spaced = self._encode(" " + word.lstrip())
            sequences[bare] = None
            if spaced[-len(bare) :] != bare:
                sequences[spaced] = None
        return tuple(sequences)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _in_vocabulary(self, ids: Iterable[int], param: str) -> Iterable[int]:
        for i in ids:
            if not 0 <= i < self._vocab_size:
                message = f"{param}: token id {i} is not in the vocabulary of {self._vocab_size}"
                raise InvalidRequestError(message, param=param)
            yield i


def _top_k(value: int | None) -> int | None:
    if value is not None and value >= _UINT32:
        raise InvalidRequestError(f"top_k must be under 2**32, not {value}", param="top_k")
    return value


def _first(*values: T | None) -> T:
    return next(value for value in values if value is not None)


def _clamp(value: float, limit: float) -> float:
    return value if math.isnan(value) else min(limit, max(-limit, value))
