"""Converts the server's messages to values, and joins pieces to whole answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton_client.deltas import (
    ContentDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegin,
    calls_of,
    content_of,
    reasoning_of,
)
from baton_client.errors import InternalError
from baton_client.hidden_states import HiddenStates
from baton_client.types import (
    Answer,
    FinishReason,
    Generation,
    Model,
    Piece,
    PromptSources,
    Timings,
    TokenDetail,
    TokenLogprob,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton_client import contract
    from baton_client.deltas import Delta

_FINISH_REASONS = {
    1: FinishReason.STOP,
    2: FinishReason.LENGTH,
    3: FinishReason.ABORT,
    4: FinishReason.TOOL_CALLS,
    5: FinishReason.REPETITION,
}
#: Values of the contract's `Reading` with which the server sends parsed deltas.
_IN_DELTAS = 2
_TIMINGS = tuple(Timings.__dataclass_fields__)
_SOURCES = tuple(PromptSources.__dataclass_fields__)


def read_piece(message: contract.GenerateResponse) -> Piece:
    """Return a piece of an answer."""
    return Piece(
        request_id=message.request_id,
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        details=tuple(_detail(item) for item in message.details),
        finish_reason=_finish_reason(message.finish_reason),
        stop_string=message.stop_string if message.HasField("stop_string") else None,
        stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
        usage=read_usage(message.usage) if message.HasField("usage") else None,
        timings=_timings(message.timings) if message.HasField("timings") else None,
        prompt_details=tuple(_detail(item) for item in message.prompt_details),
        deltas=_deltas(message),
        weight_version=message.weight_version,
        hidden_states=HiddenStates(tuple(message.hidden_states)),
    )


def read_models(message: contract.ListModelsResponse) -> tuple[Model, ...]:
    """Return the served models."""
    return tuple(
        Model(
            id=item.id,
            max_model_len=item.max_model_len,
            created=item.created,
            parent=item.parent,
            root=item.root,
        )
        for item in message.models
    )


def join(pieces: Sequence[Piece]) -> Generation:
    """Join all pieces of one request.

    Raises:
        InternalError: an answer has no end, or there is no answer.
    """
    request_id = pieces[0].request_id if pieces else ""
    by_index: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_index.setdefault(piece.index, []).append(piece)
    if not by_index:
        raise InternalError("the server ended the call without an answer", request_id=request_id)
    return Generation(
        request_id=request_id,
        answers=tuple(_answer(index, by_index[index]) for index in sorted(by_index)),
        usage=next((p.usage for p in reversed(pieces) if p.usage), Usage()),
        timings=next((p.timings for p in reversed(pieces) if p.timings), Timings()),
        prompt_details=pieces[0].prompt_details,
    )


def _answer(index: int, pieces: Sequence[Piece]) -> Answer:
    last = pieces[-1]
    deltas = [delta for piece in pieces for delta in piece.deltas]
    if last.finish_reason is None:
        raise InternalError(
            f"answer {index} of request {last.request_id} ended without a reason",
            request_id=last.request_id,
        )
    return Answer(
        index=index,
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        finish_reason=last.finish_reason,
        details=tuple(detail for piece in pieces for detail in piece.details),
        stop_string=last.stop_string,
        stop_token_id=last.stop_token_id,
        content=content_of(deltas),
        reasoning=reasoning_of(deltas),
        tool_calls=calls_of(deltas),
        weight_version=last.weight_version,
        hidden_states=HiddenStates(
            tuple(row for piece in pieces for row in piece.hidden_states.rows)
        ),
    )


def _deltas(message: contract.GenerateResponse) -> tuple[Delta, ...]:
    """Return the message's deltas; text that the server did not parse is content."""
    if message.reading != _IN_DELTAS:
        return (ContentDelta(message.text),) if message.text else ()
    read = (_delta(item) for item in message.deltas)
    return tuple(delta for delta in read if delta is not None)


def _delta(message: contract.ChatDelta) -> Delta | None:
    """Return a delta; None for a kind that is newer than this client."""
    match message.WhichOneof("delta"):
        case "content":
            return ContentDelta(message.content)
        case "reasoning":
            return ReasoningDelta(message.reasoning)
        case "call":
            return ToolCallBegin(message.call.index, message.call.id, message.call.name)
        case "arguments":
            return ToolCallArguments(message.arguments.index, message.arguments.text)
    return None


def _finish_reason(number: int) -> FinishReason | None:
    if number == 0:
        return None
    if number not in _FINISH_REASONS:
        raise InternalError(f"finish reason {number} is newer than this client; upgrade it")
    return _FINISH_REASONS[number]


def _detail(message: contract.TokenDetail) -> TokenDetail:
    position = message.logprobs
    chosen = _candidate(position.chosen, message.text) if position.HasField("chosen") else None
    top = zip(position.top, message.top_texts, strict=True)
    return TokenDetail(
        chosen=chosen,
        utf8=message.utf8,
        top=tuple(_candidate(candidate, text) for candidate, text in top),
    )


def _candidate(message: Any, text: str) -> TokenLogprob:
    return TokenLogprob(
        token_id=message.token_id, text=text, logprob=message.logprob, rank=message.rank
    )


def read_usage(message: contract.Usage) -> Usage:
    """Return what a request cost."""
    return Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        cached_tokens=message.cached_tokens,
        sources=PromptSources(**{name: getattr(message.sources, name) for name in _SOURCES}),
        recomputed_tokens=message.recomputed_tokens,
        num_replays=message.num_replays,
        num_draft_tokens=message.num_draft_tokens,
        num_accepted_tokens=message.num_accepted_tokens,
    )


def _timings(message: contract.Timings) -> Timings:
    return Timings(**{name: getattr(message, name) for name in _TIMINGS})
