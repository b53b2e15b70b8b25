"""Conversion between proto/baton/v1/router.proto and the pipeline's records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from baton.v1 import common_pb2, router_pb2
from services.router.answer.wire import timings_to_wire, usage_to_wire
from services.router.request.resume import AnswerSoFar
from shared.errors import InvalidRequestError
from shared.generation.params import GenerationParams
from shared.generation.search import read_search
from shared.request.embeds_wire import rows_from_wire
from shared.request.extra_args import read_extra_args
from shared.request.grammar.wire import grammar_from_wire
from shared.request.prompt_embeds import PromptEmbeds
from shared.request.repetition import RepetitionDetection
from shared.request.wire import extra_args_from_wire, finish_reason_to_wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.router.request.generation import AnswerPiece, TokenDetail, TokenText


def params_from_wire(message: router_pb2.GenerationParams) -> GenerationParams:
    """Return the parameters of a message. Unset fields keep the record's defaults.

    Raises:
        InvalidRequestError: a parameter is invalid.
    """
    names = [field.name for field, _ in message.ListFields()]
    scalars = {name: getattr(message, name) for name in names if name not in _NOT_SCALAR}
    best_of, beams = read_search(
        n=message.n if message.HasField("n") else 1,
        best_of=message.best_of if message.HasField("best_of") else None,
        use_beam_search=message.use_beam_search,
        length_penalty=message.length_penalty if message.HasField("length_penalty") else None,
        early_stopping=_early_stopping(message),
    )
    # ListFields leaves out fields without presence if they are false, which is their default.
    return GenerationParams(
        **scalars,
        best_of=best_of,
        beams=beams,
        logit_bias=dict(message.logit_bias),
        allowed_token_ids=(
            tuple(message.allowed_token_ids.ids) if message.HasField("allowed_token_ids") else None
        ),
        logprob_token_ids=(
            tuple(message.logprob_token_ids.ids) if message.HasField("logprob_token_ids") else None
        ),
        bad_words=tuple(message.bad_words),
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        grammar=grammar_from_wire(message.grammar) if message.HasField("grammar") else None,
        repetition_detection=_repetition(message),
        extra_args=read_extra_args(extra_args_from_wire(message.extra_args), param="extra_args"),
    )


_NOT_SCALAR = frozenset(
    {
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "stop",
        "stop_token_ids",
        "grammar",
        "extra_args",
        "repetition_detection",
        "logprob_token_ids",
        "best_of",
        "use_beam_search",
        "length_penalty",
        "early_stopping",
    }
)
_EARLY_STOPPING: dict[router_pb2.EarlyStopping.ValueType, bool | Literal["never"]] = {
    router_pb2.EARLY_STOPPING_UNSPECIFIED: False,
    router_pb2.EARLY_STOPPING_FIRST: True,
    router_pb2.EARLY_STOPPING_NEVER: "never",
}


def _early_stopping(message: router_pb2.GenerationParams) -> bool | Literal["never"]:
    found = _EARLY_STOPPING.get(message.early_stopping)
    if found is None:
        text = f"early_stopping: there is no value {message.early_stopping}"
        raise InvalidRequestError(text, param="early_stopping")
    return found


def _repetition(message: router_pb2.GenerationParams) -> RepetitionDetection | None:
    if not message.HasField("repetition_detection"):
        return None
    found = message.repetition_detection
    return RepetitionDetection(
        max_pattern_size=found.max_pattern_size,
        min_pattern_size=found.min_pattern_size,
        min_count=found.min_count,
    )


def resumed_from_wire(messages: Iterable[router_pb2.AnswerSoFar]) -> tuple[AnswerSoFar, ...]:
    """Return the resumed answers with all fields of the messages."""
    return tuple(
        AnswerSoFar(
            index=m.index,
            token_ids=tuple(m.token_ids),
            finished=m.finished,
            identity=m.identity,
        )
        for m in messages
    )


def read_rows(message: common_pb2.EmbeddingRows) -> PromptEmbeds:
    """Return the embeddings of a prompt that has no tokens. Slow for many.

    Raises:
        InvalidRequestError: these are no rows of finite numbers.
    """
    embeds = PromptEmbeds.whole(rows_from_wire(message))
    # Routing needs them; here they are computed beside other requests.
    _ = embeds.digests
    return embeds


def piece_to_wire(
    request_id: str, piece: AnswerPiece, *, resumed: bool = False
) -> router_pb2.GenerateResponse:
    """Return the message that carries `piece`.

    `resumed`: the piece follows tokens that the client has from another router.
    """
    return router_pb2.GenerateResponse(
        request_id=request_id,
        index=piece.index,
        text=piece.text,
        token_ids=piece.token_ids,
        details=[_detail(detail) for detail in piece.details],
        hidden_states=piece.hidden_states,
        finish_reason=finish_reason_to_wire(piece.finish_reason),
        stop_string=piece.stop_string,
        stop_token_id=piece.stop_token_id,
        usage=None if piece.usage is None else usage_to_wire(piece.usage),
        timings=None if piece.timings is None else timings_to_wire(piece.timings),
        prompt_details=[
            router_pb2.TokenDetail() if detail is None else _detail(detail)
            for detail in piece.prompt_details or ()
        ],
        resumed=resumed,
        identity=piece.identity,
        weight_version=piece.weight_version,
    )


def _detail(detail: TokenDetail) -> router_pb2.TokenDetail:
    return router_pb2.TokenDetail(
        text=detail.chosen.text,
        utf8=detail.chosen.utf8,
        logprobs=common_pb2.PositionLogprobs(
            chosen=_logprob(detail.chosen), top=[_logprob(token) for token in detail.top]
        ),
        top_texts=[token.text for token in detail.top],
    )


def _logprob(token: TokenText) -> common_pb2.TokenLogprob:
    return common_pb2.TokenLogprob(token_id=token.token_id, logprob=token.logprob, rank=token.rank)
