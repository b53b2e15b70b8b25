"""Conversion between wire messages and the router's records. Takes no decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.v1 import common_pb2, decode_pb2
from services.router.request.generation import TokenDetail, TokenText
from services.router.usage import Timings, Usage
from shared.rpc.wire import worker_id_to_wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.router.routing.base import PrefixSource
    from services.router.workers.endpoint import Endpoint
    from shared.text.tokenizer import Tokenizer


def candidate_to_wire(endpoint: Endpoint) -> decode_pb2.PrefillCandidate:
    """Return a prefill worker as the candidate that the decode worker gets."""
    worker = endpoint.record.worker
    return decode_pb2.PrefillCandidate(
        worker=common_pb2.WorkerId(name=worker.name, incarnation=worker.incarnation),
        address=endpoint.record.address,
    )


def prefix_sources_to_wire(
    sources: Iterable[PrefixSource],
) -> list[common_pb2.PrefixSource]:
    """Return the workers that hold a longer prefix, best first."""
    return [
        common_pb2.PrefixSource(
            worker=worker_id_to_wire(source.endpoint.record.worker),
            address=source.endpoint.record.address,
            num_blocks=source.num_blocks,
        )
        for source in sources
    ]


def token_detail(tokenizer: Tokenizer, position: common_pb2.PositionLogprobs) -> TokenDetail:
    """Return the detail of one position, with texts that only the router can decode."""
    return TokenDetail(
        _token_text(tokenizer, position.chosen),
        tuple(_token_text(tokenizer, candidate) for candidate in position.top),
    )


def prompt_details(
    tokenizer: Tokenizer, prompt: common_pb2.PromptLogprobs
) -> tuple[TokenDetail | None, ...]:
    """Return the details of a prompt; the first token's, without `chosen`, becomes None."""
    return tuple(
        token_detail(tokenizer, position) if position.HasField("chosen") else None
        for position in prompt.positions
    )


def usage_from_wire(message: common_pb2.Usage) -> Usage:
    """Return the record of the message: all fields, with tokens, replays and draft tokens."""
    sources = message.sources
    return Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        cached_tokens=message.cached_tokens,
        computed_tokens=sources.computed,
        local_hit_tokens=sources.local_hit,
        transferred_tokens=sources.transferred,
        transferred_hit_tokens=sources.transferred_hit,
        fetched_tokens=sources.fetched,
        recomputed_tokens=message.recomputed_tokens,
        num_replays=message.num_replays,
        num_draft_tokens=message.num_draft_tokens,
        num_accepted_tokens=message.num_accepted_tokens,
    )


def usage_to_wire(usage: Usage) -> common_pb2.Usage:
    """Return the message with all fields of the record."""
    return common_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        sources=common_pb2.PromptSources(
            computed=usage.computed_tokens,
            local_hit=usage.local_hit_tokens,
            transferred=usage.transferred_tokens,
            transferred_hit=usage.transferred_hit_tokens,
            fetched=usage.fetched_tokens,
        ),
        recomputed_tokens=usage.recomputed_tokens,
        num_replays=usage.num_replays,
        num_draft_tokens=usage.num_draft_tokens,
        num_accepted_tokens=usage.num_accepted_tokens,
    )


def timings_from_wire(message: common_pb2.Timings) -> Timings:
    """Return the record of the message; both have the same field names."""
    return Timings(**{name: getattr(message, name) for name in Timings.__slots__})


def timings_to_wire(timings: Timings) -> common_pb2.Timings:
    """Return the message of the record; both have the same field names."""
    return common_pb2.Timings(**{name: getattr(timings, name) for name in Timings.__slots__})


def _token_text(tokenizer: Tokenizer, candidate: common_pb2.TokenLogprob) -> TokenText:
    utf8 = tokenizer.token_bytes(candidate.token_id)
    return TokenText(
        candidate.token_id,
        utf8.decode("utf-8", "replace"),
        utf8,
        candidate.logprob,
        candidate.rank,
    )
