"""Limits on a request. A request over a limit is refused before any work is done for it.

Both front ends apply these checks. Each front end checks its own parts (headers, JSON) itself.
docs/fuzzing.md has the table of limits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from shared.config import flag_name, setting
from shared.errors import ConfigError, InvalidRequestError, PayloadTooLargeError
from shared.request.grammar.checks import MAX_CHARS as MAX_GRAMMAR_CHARS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from shared.generation.params import GenerationParams

_MEBI = 2**20
#: Of a number in a vector.
FLOAT_BYTES = 4
#: As a number of alternatives: all tokens there are; as a limit of that number: none.
ALL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits on one request and on the connections of clients."""

    max_body_bytes: int = setting(16 * _MEBI, help="bytes of an HTTP request's body")
    max_json_depth: int = setting(64, help="lists and objects of a body inside each other")
    max_prompt_chars: int = setting(
        4_000_000, help="characters of all texts of a request, before they are tokenised"
    )
    max_prompt_tokens: int | None = setting(
        None, help="tokens of a prompt; by default what the model's context has room for"
    )
    max_prompts: int = setting(256, help="prompts of a completions request")
    max_inputs: int = setting(2048, help="texts of a request for vectors, or for scores")
    max_vector_bytes: int = setting(
        256 * _MEBI, help="bytes of the vectors of each token that a request may ask for"
    )
    max_answers: int = setting(512, help="answers of a request: its prompts times n")
    max_messages: int = setting(4096, help="messages of a conversation")
    max_tools: int = setting(512, help="tools of a request")
    max_output_tokens: int | None = setting(
        None, help="tokens of an answer; by default what the model's context has room for"
    )
    max_n: int = setting(128, help="answers per prompt")
    max_stop_strings: int = setting(64, help="stop strings of a request")
    max_stop_chars: int = setting(4096, help="characters of a stop string, or of a bad word")
    max_stop_token_ids: int = setting(1024, help="stop tokens of a request")
    max_logit_bias: int = setting(1024, help="tokens whose logits a request may change")
    max_bad_words: int = setting(1024, help="words that a request may forbid")
    max_grammar_chars: int = setting(
        MAX_GRAMMAR_CHARS, help="characters of a JSON Schema, a regular expression or a grammar"
    )
    max_logprobs: int = setting(
        20,
        help="alternatives per token that a request may ask for; -1: as many as there are tokens",
    )
    max_header_bytes: int = setting(64 * 2**10, help="bytes of an HTTP request's head")
    max_headers: int = setting(128, help="headers of an HTTP request")
    header_timeout_s: float = setting(10.0, help="longest time for an HTTP request's head")
    body_timeout_s: float = setting(120.0, help="longest time for an HTTP request's body")
    idle_timeout_s: float = setting(
        # Longer than the idle timeout of usual proxies: otherwise their requests may meet a
        # connection that is closing.
        75.0,
        help="how long an HTTP connection may be without a request",
    )
    max_connections: int = setting(8192, help="open HTTP connections")
    max_grpc_message_bytes: int = setting(
        16 * _MEBI, help="bytes of a gRPC message; a prompt of a million tokens has four"
    )
    max_grpc_streams: int = setting(4096, help="running calls of one gRPC connection")

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "max_logprobs" and value in (0, ALL):
                continue
            if value is not None and not value > 0:
                raise ConfigError(f"{flag_name(field.name)} must be over 0, not {value}")
        if self.max_grammar_chars > MAX_GRAMMAR_CHARS:
            message = f"--max-grammar-chars must be at most {MAX_GRAMMAR_CHARS}, which workers take"
            raise ConfigError(message)


DEFAULT_LIMITS = RequestLimits()
#: OpenAI's bound, for every API. The engine has none.
MAX_TEMPERATURE = 2.0


def check_params(params: GenerationParams, limits: RequestLimits) -> None:
    """Refuse sampling parameters that are over a limit.

    Raises:
        InvalidRequestError: `param` names the first one.
    """
    if not 1 <= params.n <= limits.max_n:
        message = f"n must be between 1 and {limits.max_n}, not {params.n}"
        raise InvalidRequestError(message, param="n")
    if params.num_sequences > limits.max_n:
        message = f"best_of must be at most {limits.max_n}, not {params.num_sequences}"
        raise InvalidRequestError(message, param="best_of")
    if params.temperature is not None and params.temperature > MAX_TEMPERATURE:
        message = f"temperature must be at most {MAX_TEMPERATURE:g}, not {params.temperature:g}"
        raise InvalidRequestError(message, param="temperature")
    if params.stream_interval is not None and params.stream_interval < 1:
        message = f"stream_interval must be at least 1, not {params.stream_interval}"
        raise InvalidRequestError(message, param="stream_interval")
    _check_count("stop", params.stop, limits.max_stop_strings, "strings")
    _check_lengths("stop", "a stop string", params.stop, limits)
    _check_count("bad_words", params.bad_words, limits.max_bad_words, "words")
    _check_lengths("bad_words", "a bad word", params.bad_words, limits)
    _check_count("stop_token_ids", params.stop_token_ids, limits.max_stop_token_ids, "tokens")
    _check_count("logit_bias", params.logit_bias, limits.max_logit_bias, "tokens")
    grammar = params.grammar
    if grammar is not None and len(grammar.text) > limits.max_grammar_chars:
        largest_text = limits.max_grammar_chars
        message = (
            f"{grammar.param} must have at most {largest_text} characters, not {len(grammar.text)}"
        )
        raise InvalidRequestError(message, param=grammar.param)
    for name in ("logprobs", "prompt_logprobs"):
        _check_logprobs(name, getattr(params, name), limits)
    if params.logprob_token_ids is not None and params.logprobs is None:
        raise InvalidRequestError("logprob_token_ids needs logprobs", param="logprob_token_ids")
    largest = limits.max_output_tokens
    if largest is not None and params.max_tokens is not None and params.max_tokens > largest:
        message = f"max_tokens must be at most {largest}, not {params.max_tokens}"
        raise InvalidRequestError(message, param="max_tokens")


def _check_logprobs(name: str, value: int | None, limits: RequestLimits) -> None:
    """Refuse more alternatives than the limit; all of them only if there is none."""
    largest = limits.max_logprobs
    if value is None or (value >= ALL and largest == ALL):
        return
    if not 0 <= value <= largest:
        most = "" if largest == ALL else f" and at most {largest}"
        least = "-1 (all tokens)" if largest == ALL else "0"
        message = f"{name} must be at least {least}{most}, not {value}: see --max-logprobs"
        raise InvalidRequestError(message, param=name)


def check_answers(
    num_prompts: int, n: int, limits: RequestLimits, *, param: str = "prompt"
) -> None:
    """Refuse a request for too many answers in total. `param` is the field with the prompts.

    Raises:
        InvalidRequestError: there are too many prompts, or too many answers to them.
    """
    if num_prompts > limits.max_prompts:
        message = f"{param} must hold at most {limits.max_prompts} prompts, not {num_prompts}"
        raise InvalidRequestError(message, param=param)
    if num_prompts * n > limits.max_answers:
        message = (
            f"n times the number of prompts must be at most {limits.max_answers}, "
            f"not {num_prompts * n}"
        )
        raise InvalidRequestError(message, param="n")


def check_texts(texts: Iterable[str], limits: RequestLimits, *, param: str) -> None:
    """Refuse texts that are too long to be tokenised.

    Raises:
        PayloadTooLargeError: their total length is over the limit.
    """
    num_chars = sum(map(len, texts))
    if num_chars > limits.max_prompt_chars:
        message = f"{param} must have at most {limits.max_prompt_chars} characters, not {num_chars}"
        raise PayloadTooLargeError(message, param=param)


def check_inputs(num_texts: int, limits: RequestLimits, *, param: str) -> None:
    """Refuse a request for no vectors, or for too many. `param` is the field with the texts.

    Raises:
        InvalidRequestError: there is no text, or there are too many.
    """
    if not num_texts:
        raise InvalidRequestError(f"{param} must not be empty", param=param)
    if num_texts > limits.max_inputs:
        message = f"{param} must have at most {limits.max_inputs} texts, not {num_texts}"
        raise InvalidRequestError(message, param=param)


def check_token_vectors(num_tokens: int, size: int, limits: RequestLimits, *, param: str) -> None:
    """Refuse vectors of `size` numbers, one for each of so many tokens, that are too much together.

    Raises:
        InvalidRequestError: they have more bytes than the limit.
    """
    most, num_bytes = limits.max_vector_bytes, num_tokens * size * FLOAT_BYTES
    if num_bytes > most:
        allowed = most // (size * FLOAT_BYTES)
        message = (
            f"the vectors of {num_tokens} tokens have {num_bytes} bytes, and at most {most} are "
            f"allowed (--max-vector-bytes): send at most {allowed} tokens at a time"
        )
        raise InvalidRequestError(message, param=param)


def check_num_tokens(num_tokens: int, limits: RequestLimits, *, param: str) -> None:
    """Refuse a prompt of too many tokens, whatever the model's context length.

    Raises:
        InvalidRequestError: it has more than the limit.
    """
    largest = limits.max_prompt_tokens
    if largest is not None and num_tokens > largest:
        message = f"{param} must have at most {largest} tokens, not {num_tokens}"
        raise InvalidRequestError(message, param=param)


def check_num_messages(num_messages: int, limits: RequestLimits) -> None:
    """Refuse a conversation of too many messages.

    Raises:
        InvalidRequestError: it has more than the limit.
    """
    if num_messages > limits.max_messages:
        message = f"messages must hold at most {limits.max_messages}, not {num_messages}"
        raise InvalidRequestError(message, param="messages")


def texts_in(value: object) -> Iterator[str]:
    """Yield every string in a tree of lists and objects, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts_in(key)
            yield from texts_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_in(inner)


def _check_count(param: str, values: Collection[object], largest: int, what: str) -> None:
    if len(values) > largest:
        message = f"{param} must hold at most {largest} {what}, not {len(values)}"
        raise InvalidRequestError(message, param=param)


def _check_lengths(param: str, what: str, texts: Iterable[str], limits: RequestLimits) -> None:
    for text in texts:
        if not 0 < len(text) <= limits.max_stop_chars:
            message = f"{what} must have 1 to {limits.max_stop_chars} characters, not {len(text)}"
            raise InvalidRequestError(message, param=param)
