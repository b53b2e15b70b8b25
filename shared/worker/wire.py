"""Between the wire's messages and the worker's own records. Nothing is decided here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.v1 import common_pb2, transfer_pb2
from shared.connector.base import Offer, Ticket
from shared.errors import InvalidRequestError
from shared.kv.layout import KVLayout
from shared.request.answer import FinishReason, PositionLogprobs, TokenLogprob
from shared.request.grammar.wire import grammar_from_wire
from shared.request.sampling_params import SamplingParams
from shared.rpc.wire import extra_args_from_wire, worker_id_from_wire, worker_id_to_wire

if TYPE_CHECKING:
    from collections.abc import Sequence

_FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
}


def sampling_from_wire(message: common_pb2.SamplingParams) -> SamplingParams:
    """Raises InvalidRequestError, naming the parameter, if a value is out of range."""
    return SamplingParams(
        max_tokens=message.max_tokens,
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        min_p=message.min_p,
        repetition_penalty=(
            message.repetition_penalty if message.HasField("repetition_penalty") else 1.0
        ),
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=dict(message.logit_bias),
        allowed_token_ids=(
            tuple(message.allowed_token_ids.ids) if message.HasField("allowed_token_ids") else None
        ),
        bad_words_token_ids=tuple(tuple(word.ids) for word in message.bad_words_token_ids),
        min_tokens=message.min_tokens,
        eos_token_ids=tuple(message.eos_token_ids),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        seed=message.seed,
        sample_index=message.sample_index,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        grammar=grammar_from_wire(message.grammar) if message.HasField("grammar") else None,
        num_speculative_tokens=(
            message.num_speculative_tokens if message.HasField("num_speculative_tokens") else None
        ),
        extra_args=extra_args_from_wire(message.extra_args),
    )


def split_resumed(
    token_ids: Sequence[int], num_resumed_tokens: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The prompt, and the output that was emitted before.

    Raises InvalidRequestError if nothing is left for the prompt.
    """
    num_prompt_tokens = len(token_ids) - num_resumed_tokens
    if num_resumed_tokens and num_prompt_tokens < 1:
        raise InvalidRequestError(
            f"{num_resumed_tokens} of {len(token_ids)} tokens cannot be output of a prompt",
            param="num_resumed_tokens",
        )
    return tuple(token_ids[:num_prompt_tokens]), tuple(token_ids[num_prompt_tokens:])


def finish_reason_to_wire(reason: FinishReason | None) -> common_pb2.FinishReason.ValueType:
    """None, for a sequence that goes on, becomes UNSPECIFIED."""
    return common_pb2.FINISH_REASON_UNSPECIFIED if reason is None else _FINISH_REASONS[reason]


def logprobs_to_wire(position: PositionLogprobs) -> common_pb2.PositionLogprobs:
    """One position."""
    return common_pb2.PositionLogprobs(
        chosen=_candidate_to_wire(position.chosen),
        top=[_candidate_to_wire(candidate) for candidate in position.top],
    )


def prompt_logprobs_to_wire(
    positions: Sequence[PositionLogprobs | None],
) -> common_pb2.PromptLogprobs:
    """A whole prompt; None, for the first token, becomes an entry without `chosen`."""
    return common_pb2.PromptLogprobs(
        positions=[
            common_pb2.PositionLogprobs() if position is None else logprobs_to_wire(position)
            for position in positions
        ]
    )


def layout_to_wire(layout: KVLayout) -> transfer_pb2.KVLayout:
    """All fields."""
    return transfer_pb2.KVLayout(
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        block_size=layout.block_size,
        head_dim=layout.head_dim,
        dtype=layout.dtype,
        version=layout.version,
    )


def layout_from_wire(message: transfer_pb2.KVLayout) -> KVLayout:
    """All fields."""
    return KVLayout(
        num_layers=message.num_layers,
        num_kv_heads=message.num_kv_heads,
        block_size=message.block_size,
        head_dim=message.head_dim,
        dtype=message.dtype,
        version=message.version,
    )


def ticket_to_wire(ticket: Ticket) -> transfer_pb2.TransferTicket:
    """All fields."""
    return transfer_pb2.TransferTicket(
        transfer_id=ticket.transfer_id,
        connector=ticket.connector,
        address=ticket.address,
        request_id=ticket.request_id,
        sender=worker_id_to_wire(ticket.sender),
        receiver=worker_id_to_wire(ticket.receiver),
        num_blocks=ticket.num_blocks,
        layout=layout_to_wire(ticket.layout),
    )


def ticket_from_wire(message: transfer_pb2.TransferTicket) -> Ticket:
    """Raises InvalidRequestError if it cannot be a ticket."""
    if len(message.transfer_id) != 16:
        raise InvalidRequestError(
            f"a transfer id has 16 bytes, not {len(message.transfer_id)}", param="ticket"
        )
    return Ticket(
        transfer_id=message.transfer_id,
        connector=message.connector,
        address=message.address,
        request_id=message.request_id,
        sender=worker_id_from_wire(message.sender),
        receiver=worker_id_from_wire(message.receiver),
        num_blocks=message.num_blocks,
        layout=layout_from_wire(message.layout),
    )


def offer_to_wire(offer: Offer) -> transfer_pb2.ConnectorOffer:
    """All fields."""
    return transfer_pb2.ConnectorOffer(
        connector=offer.connector, address=offer.address, params=offer.params
    )


def offer_from_wire(message: transfer_pb2.ConnectorOffer) -> Offer:
    """All fields."""
    return Offer(connector=message.connector, address=message.address, params=dict(message.params))


def _candidate_to_wire(candidate: TokenLogprob) -> common_pb2.TokenLogprob:
    return common_pb2.TokenLogprob(
        token_id=candidate.token_id, logprob=candidate.logprob, rank=candidate.rank
    )
