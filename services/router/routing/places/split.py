"""Where to cut a prompt whose beginning another worker computes while the writer is busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.routing.places.placement import Split
from shared.rpc.protocol import SPLIT_MINOR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.router.routing.base import Candidate, RoutingRequest

#: Shares of what is left to compute that the reader may get.
SHARES = (0.25, 0.5, 0.75)
#: Shorter parts do not pay for a second queue.
MIN_PART_TOKENS = 128


def splits_of(request: RoutingRequest, reader: Candidate, writer: Candidate) -> Iterator[Split]:
    """Yield the splits that could bring the first token sooner; none unless the writer is busy.

    `writer` has the estimates for the case that it computes all of the prompt. While it computes
    others' prompts, the reader computes the beginning:
    max(reader's queue and part and its move, writer's queue) + the rest.
    """
    endpoint = writer.endpoint
    if not request.can_split:
        return
    if not writer.queue_ms or not endpoint.splits or writer.adapter_ms or reader.adapter_ms:
        return
    if endpoint.software.protocol_minor < SPLIT_MINOR or reader.num_fetched_tokens:
        return
    num_tokens, block_size = request.num_prompt_tokens, endpoint.record.block_size
    num_left = num_tokens - writer.num_held_tokens
    for share in SHARES:
        num_part = writer.num_held_tokens + int(share * num_left)
        num_part -= num_part % block_size
        num_here = num_part - max(writer.num_held_tokens, reader.num_held_tokens)
        if num_here < MIN_PART_TOKENS or num_tokens - num_part < MIN_PART_TOKENS:
            continue
        reader_ms = reader.endpoint.profile.prefill_ms(num_part, reader.num_held_tokens)
        writer_ms = endpoint.profile.prefill_ms(num_tokens, num_part)
        there_ms = reader.queue_ms + reader_ms * _slowness(reader)
        there_ms += endpoint.profile.exposed_ms(num_part - writer.num_held_tokens)
        ttft_ms = max(there_ms, writer.queue_ms) + writer_ms * _slowness(writer)
        yield Split(num_part, ttft_ms, reader_ms, writer_ms)


def _slowness(candidate: Candidate) -> float:
    """Return how much longer a computation takes there because of sequences that decode."""
    if not candidate.prefill_ms:
        return 1.0
    return 1 + candidate.stretch_ms / candidate.prefill_ms
