"""Between `baton.v1` and the records of requests and answers, both ways, for every process.

A field of `SamplingParams` has one name in the record and in the message. A number, text or flag
needs no line here; `_TO_WIRE` and `_FROM_WIRE` have what protobuf holds in another form.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from baton.v1 import common_pb2
from shared.errors import InvalidRequestError
from shared.request.answer import FinishReason
from shared.request.grammar.wire import (
    grammar_from_wire,
    grammar_to_wire,
    thinking_from_wire,
    thinking_to_wire,
)
from shared.request.logprobs_mode import LogprobsMode
from shared.request.sampling_params import SamplingParams
from shared.request.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shared.request.answer import PositionLogprobs, TokenLogprob
    from shared.request.extra_args import ExtraArg, Scalar

_FINISH_REASONS = {
    common_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    common_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    common_pb2.FINISH_REASON_ABORT: FinishReason.ABORT,
    common_pb2.FINISH_REASON_REPETITION: FinishReason.REPETITION,
}
_WIRE_FINISH_REASONS = {reason: wire for wire, reason in _FINISH_REASONS.items()}


def sampling_to_wire(params: SamplingParams) -> common_pb2.SamplingParams:
    """Return all fields; None leaves a field unset. Tokens that are drawn need a seed."""
    given = {name: getattr(params, name) for name in _SAMPLING_NAMES}
    given["seed"] = params.fixed_seed
    for name, convert in _TO_WIRE.items():
        if given[name] is not None:
            given[name] = convert(given[name])
    return common_pb2.SamplingParams(**given)


def sampling_from_wire(message: common_pb2.SamplingParams) -> SamplingParams:
    """Return the record; what is unset has the record's default.

    Raises:
        InvalidRequestError: a value is out of range; `param` names it.
    """
    given = {
        name: getattr(message, name)
        for name in _SAMPLING_NAMES
        if name not in _WITH_PRESENCE or message.HasField(name)  # type: ignore[arg-type]  # stubs list the names
    }
    for name, convert in _FROM_WIRE.items():
        if name in given:
            given[name] = convert(given[name])
    return SamplingParams(**given)


def extra_args_to_wire(
    args: Mapping[str, ExtraArg],
) -> dict[str, common_pb2.ExtraArg]:
    """Return each value with its type."""
    return {name: _extra_arg_to_wire(value) for name, value in args.items()}


def extra_args_from_wire(
    args: Mapping[str, common_pb2.ExtraArg],
) -> dict[str, ExtraArg]:
    """Return the arguments; InvalidRequestError if one has no value, or lists inside a list."""
    return {
        name: tuple(_scalar_from_wire(name, item) for item in arg.list.items)
        if arg.HasField("list")
        else _scalar_from_wire(name, arg)
        for name, arg in args.items()
    }


def _extra_arg_to_wire(value: ExtraArg) -> common_pb2.ExtraArg:
    match value:
        case bool():
            return common_pb2.ExtraArg(flag=value)
        case int():
            return common_pb2.ExtraArg(integer=value)
        case float():
            return common_pb2.ExtraArg(number=value)
        case str():
            return common_pb2.ExtraArg(text=value)
    items = [_extra_arg_to_wire(item) for item in value]
    return common_pb2.ExtraArg(list=common_pb2.ExtraArgs(items=items))


def _scalar_from_wire(name: str, arg: common_pb2.ExtraArg) -> Scalar:
    match arg.WhichOneof("value"):
        case "flag":
            return arg.flag
        case "integer":
            return arg.integer
        case "number":
            return arg.number
        case "text":
            return arg.text
    message = f"extra_args.{name[:64]} must be a value or a list of values"
    raise InvalidRequestError(message, param="extra_args")


def finish_reason_to_wire(reason: FinishReason | None) -> common_pb2.FinishReason.ValueType:
    """Return UNSPECIFIED for None, a sequence that goes on."""
    return common_pb2.FINISH_REASON_UNSPECIFIED if reason is None else _WIRE_FINISH_REASONS[reason]


def finish_reason_from_wire(value: common_pb2.FinishReason.ValueType) -> FinishReason | None:
    """Return None for UNSPECIFIED, a sequence that goes on."""
    return _FINISH_REASONS.get(value)


def logprobs_to_wire(position: PositionLogprobs) -> common_pb2.PositionLogprobs:
    """Return one position's."""
    return common_pb2.PositionLogprobs(
        chosen=_logprob_to_wire(position.chosen),
        top=[_logprob_to_wire(candidate) for candidate in position.top],
    )


def prompt_logprobs_to_wire(
    positions: Sequence[PositionLogprobs | None],
) -> common_pb2.PromptLogprobs:
    """Return a whole prompt's; None, for the first token, becomes an entry without `chosen`."""
    return common_pb2.PromptLogprobs(
        positions=[
            common_pb2.PositionLogprobs() if position is None else logprobs_to_wire(position)
            for position in positions
        ]
    )


def _logprob_to_wire(candidate: TokenLogprob) -> common_pb2.TokenLogprob:
    return common_pb2.TokenLogprob(
        token_id=candidate.token_id, logprob=candidate.logprob, rank=candidate.rank
    )


def budget_to_wire(budget: ThinkingBudget) -> common_pb2.ThinkingBudget:
    """Return the message."""
    return common_pb2.ThinkingBudget(
        max_tokens=budget.max_tokens, thinking=thinking_to_wire(budget.thinking)
    )


def budget_from_wire(message: common_pb2.ThinkingBudget) -> ThinkingBudget:
    """Return the record."""
    return ThinkingBudget(
        max_tokens=message.max_tokens, thinking=thinking_from_wire(message.thinking)
    )


_MODES = {
    common_pb2.LOGPROBS_MODE_UNSPECIFIED: LogprobsMode.RAW_LOGPROBS,
    common_pb2.LOGPROBS_MODE_PROCESSED_LOGPROBS: LogprobsMode.PROCESSED_LOGPROBS,
    common_pb2.LOGPROBS_MODE_RAW_LOGITS: LogprobsMode.RAW_LOGITS,
    common_pb2.LOGPROBS_MODE_PROCESSED_LOGITS: LogprobsMode.PROCESSED_LOGITS,
}
_WIRE_MODES = {mode: wire for wire, mode in _MODES.items()}


def mode_from_wire(value: common_pb2.LogprobsMode.ValueType) -> LogprobsMode:
    """Return the mode.

    Raises:
        InvalidRequestError: a newer peer has sent one that is not known here.
    """
    mode = _MODES.get(value)
    if mode is None:
        raise InvalidRequestError(f"logprobs_mode {value} is unknown", param="logprobs_mode")
    return mode


_TO_WIRE: dict[str, Callable[[Any], Any]] = {
    "allowed_token_ids": lambda ids: common_pb2.TokenIds(ids=ids),
    "logprob_token_ids": lambda ids: common_pb2.TokenIds(ids=ids),
    "bad_words_token_ids": lambda words: [common_pb2.TokenIds(ids=ids) for ids in words],
    "grammar": grammar_to_wire,
    "logprobs_mode": _WIRE_MODES.__getitem__,
    "thinking_budget": budget_to_wire,
    "extra_args": extra_args_to_wire,
}
_FROM_WIRE: dict[str, Callable[[Any], Any]] = {
    "logit_bias": dict,
    "allowed_token_ids": lambda message: tuple(message.ids),
    "logprob_token_ids": lambda message: tuple(message.ids),
    "bad_words_token_ids": lambda messages: tuple(tuple(message.ids) for message in messages),
    "eos_token_ids": tuple,
    "stop_token_ids": tuple,
    "grammar": grammar_from_wire,
    "logprobs_mode": mode_from_wire,
    "thinking_budget": budget_from_wire,
    "extra_args": extra_args_from_wire,
}
_SAMPLING_NAMES = tuple(field.name for field in fields(SamplingParams))
_WITH_PRESENCE = frozenset(
    field.name for field in common_pb2.SamplingParams.DESCRIPTOR.fields if field.has_presence
)
