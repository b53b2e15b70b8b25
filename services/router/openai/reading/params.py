"""A body's sampling fields as GenerationParams, with checks across fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.router.openai.errors import FieldError
from services.router.openai.reading.structured import read_grammar
from shared.errors import UnsupportedError
from shared.generation.limits import check_params
from shared.generation.params import GenerationParams
from shared.generation.search import read_search
from shared.request.beam_search import require_no_constraints
from shared.request.extra_args import read_extra_args
from shared.request.repetition import read_repetition

if TYPE_CHECKING:
    from services.router.openai.schema.base import GenerationBody
    from shared.generation.limits import RequestLimits
    from shared.request.extra_args import ExtraArg

#: Fields of a body that are parameters of the same name; null is the parameter's default.
_SAME = frozenset(GenerationParams.__slots__) - {
    "max_tokens",
    "logprobs",
    "stop",
    "best_of",
    "beams",
    "extra_args",
    "shown_token_ids",
    "grammar",
    "repetition_detection",
    "thinking_token_budget",
    "thinking",
    "logprobs_mode",
}


def read_params(
    body: GenerationBody, limits: RequestLimits, *, max_tokens: int | None, logprobs: int | None
) -> GenerationParams:
    """Return the sampling parameters of `body`.

    `max_tokens` and `logprobs` are the endpoint's own reading of its fields.

    Raises:
        InvalidRequestError: a field is wrong, or over a limit.
    """
    min_tokens = body.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        message = f"min_tokens must be at most max_tokens, which is {max_tokens}, not {min_tokens}"
        raise FieldError(message, param="min_tokens")
    best_of, beams = read_search(
        n=body.n or 1,
        best_of=body.best_of,
        use_beam_search=bool(body.use_beam_search),
        length_penalty=body.length_penalty,
        early_stopping=body.early_stopping or False,
    )
    same = {name: getattr(body, name) for name in _SAME}
    params = GenerationParams(
        **{name: value for name, value in same.items() if value is not None},
        max_tokens=max_tokens,
        logprobs=logprobs,
        stop=_read_stop(body.stop),
        best_of=best_of,
        beams=beams,
        extra_args=_read_extra_args(body),
        grammar=read_grammar(body),
        thinking_token_budget=_read_budget(body.thinking_token_budget),
        repetition_detection=read_repetition(body.repetition_detection),
    )
    check_params(params, limits)
    if params.beams is not None:
        require_no_constraints(params)
    return params


def check_stream_options(body: GenerationBody) -> None:
    """Refuse stream options without a stream, and options that streams cannot fulfil."""
    if body.stream_options is not None and not body.stream:
        message = "stream_options is only allowed when stream is true"
        raise FieldError(message, param="stream_options")
    options = body.stream_options
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        name = "stream_options.continuous_usage_stats"
        raise FieldError(f"{name} needs stream_options.include_usage to be true", param=name)
    if body.stream and body.prompt_logprobs is not None:
        message = "prompt_logprobs is not available when stream is true"
        raise FieldError(message, param="prompt_logprobs")
    for name in ("use_beam_search", "best_of"):
        # The best answers are known at the end only.
        if body.stream and getattr(body, name) and not (name == "best_of" and _is_all(body)):
            message = f"{name} is not available when stream is true"
            raise UnsupportedError(message, param=name)


def _is_all(body: GenerationBody) -> bool:
    return body.best_of == (body.n or 1)


def _read_extra_args(body: GenerationBody) -> dict[str, ExtraArg]:
    name = "extra_args" if body.vllm_xargs is None else "vllm_xargs"
    if body.vllm_xargs is not None and body.extra_args is not None:
        message = "vllm_xargs and extra_args mean the same: give one of them"
        raise FieldError(message, param="extra_args")
    return read_extra_args(getattr(body, name), param=name)


def _read_budget(value: int | None) -> int | None:
    return None if value == -1 else value


def _read_stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        message = "stop must be a string or a list of strings"
        raise FieldError(message, param="stop", code="invalid_type")
    return tuple(strings)
