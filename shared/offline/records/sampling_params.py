"""vLLM's parameters of sampling, and what they are here."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from shared.errors import InvalidRequestError, UnsupportedError
from shared.generation.grammar import choice_grammar, json_schema_grammar, structural_tag_grammar
from shared.generation.params import GenerationParams
from shared.request.grammar.spec import GrammarKind, GrammarSpec
from shared.request.repetition import read_repetition

#: Fields that are known, would change the answer and are not offered, with the values that say
#: nothing.
_NOT_OFFERED: dict[str, tuple[Any, ...]] = {
    "watermarking": (None, False),
    "prompt_logprob_token_ids": (None,),
    "prompt_logprob_start": (None, 0),
    "flat_logprobs": (False,),
    "trace_decode_token_ids": (None,),
}
#: What to do instead, where there is something.
_INSTEAD = {
    "watermarking": "no engine here marks its answers",
    "prompt_logprob_token_ids": "prompt_logprobs has the most likely tokens of every position",
    "prompt_logprob_start": "prompt_logprobs has every position",
    "flat_logprobs": "log probabilities are lists of mappings",
    "trace_decode_token_ids": "a processor of the engine's logits_processors can force tokens",
}


class RequestOutputKind(Enum):
    """What an engine's outputs hold: all so far, what is new, or nothing before the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class StructuredOutputsParams:
    """What answers look like. Exactly one of the first six is set."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def spec(self) -> GrammarSpec:
        """Return the grammar.

        Raises:
            InvalidRequestError: none or several are set, or one is wrong.
        """
        names = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [name for name in names if getattr(self, name)]
        if len(given) != 1:
            message = f"structured_outputs must set one of {', '.join(names)}, not {len(given)}"
            raise InvalidRequestError(message, param="structured_outputs")
        if self.whitespace_pattern is not None:
            message = "structured_outputs.whitespace_pattern is not supported"
            raise UnsupportedError(message, param="structured_outputs.whitespace_pattern")
        return self._spec(given[0], f"structured_outputs.{given[0]}")

    def _spec(self, name: str, param: str) -> GrammarSpec:
        value: Any = getattr(self, name)
        free = not self.disable_any_whitespace
        if name == "json":
            schema = _parsed(value, param)
            return json_schema_grammar(schema, any_whitespace=free, param=param)
        if name == "json_object":
            kind = GrammarKind.JSON_OBJECT
            return GrammarSpec(kind=kind, any_whitespace=free, param=param)
        if name == "choice":
            return choice_grammar(list(value), param=param)
        if name == "structural_tag":
            return structural_tag_grammar(_parsed(value, param), param=param)
        kind = GrammarKind.REGEX if name == "regex" else GrammarKind.EBNF
        return GrammarSpec(kind=kind, text=value, param=param)


@dataclass
class SamplingParams:
    """How to choose tokens. Names and defaults are vLLM's."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: bool | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: list[int] | None = None
    #: Beyond vLLM's parameters: return the hidden states behind the answer's tokens.
    return_hidden_states: bool = False

    def __post_init__(self) -> None:
        self.structured_outputs = _structured(self.structured_outputs)
        self.to_generation()

    @classmethod
    def from_optional(cls, **given: Any) -> SamplingParams:
        """Return parameters of which some are None: those have their defaults."""
        return cls(**{name: value for name, value in given.items() if value is not None})

    def clone(self) -> SamplingParams:
        """Return a copy that shares nothing."""
        return copy.deepcopy(self)

    def to_generation(self) -> GenerationParams:
        """Return the parameters for a resolver.

        Raises:
            InvalidRequestError: a value is wrong, or asks for what is not offered.
        """
        for name, silent in _NOT_OFFERED.items():
            value = getattr(self, name)
            if not any(value is each or value == each for each in silent):
                instead = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
                raise UnsupportedError(f"{name} is not supported here{instead}", param=name)
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop needs detokenize", param="stop")
        if self.repetition_detection and not self.detokenize:
            message = "repetition_detection needs detokenize"
            raise InvalidRequestError(message, param="repetition_detection")
        return GenerationParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={int(i): bias for i, bias in (self.logit_bias or {}).items()},
            allowed_token_ids=_ids(self.allowed_token_ids),
            bad_words=_words(self.bad_words),
            min_tokens=self.min_tokens,
            stop=_strings(self.stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            seed=self.seed,
            n=self.n,
            extra_args=dict(self.extra_args or {}),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            logprob_token_ids=_ids(self.logprob_token_ids),
            return_hidden_states=bool(self.return_hidden_states),
            stream_interval=self.stream_interval,
            skip_special_tokens=self.skip_special_tokens,
            spaces_between_special_tokens=self.spaces_between_special_tokens,
            repetition_detection=read_repetition(self.repetition_detection),
            thinking_token_budget=_budget(self.thinking_token_budget),
            grammar=None if self.structured_outputs is None else self.structured_outputs.spec(),
        )


@dataclass
class BeamSearchParams:
    """How to search for the most likely answers."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False


def _structured(value: Any) -> StructuredOutputsParams | None:
    """Return the parameters that are given as such, or as a mapping."""
    return StructuredOutputsParams(**value) if isinstance(value, Mapping) else value


def _ids(ids: list[int] | None) -> tuple[int, ...] | None:
    return None if ids is None else tuple(ids)


def _words(words: Any) -> tuple[str, ...]:
    if isinstance(words, str):
        # Each of its letters would be a word.
        message = f"bad_words must be a list of words, not {words!r}"
        raise InvalidRequestError(message, param="bad_words")
    return tuple(words or ())


def _budget(num_tokens: int | None) -> int | None:
    return None if num_tokens == -1 else num_tokens


def _strings(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _parsed(value: Any, param: str) -> Any:
    if hasattr(value, "model_json_schema"):
        return value.model_json_schema()
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidRequestError(f"{param} is not valid JSON: {error}", param=param) from error
