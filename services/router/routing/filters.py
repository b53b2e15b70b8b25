"""Filters: exclude workers that cannot serve a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.directory.generations import identity_of
from shared.kv.hand_off import fit
from shared.rpc.protocol import BLOCK_SIZES_MINOR

if TYPE_CHECKING:
    from services.router.routing.base import Filter, RoutingRequest
    from services.router.workers.endpoint import Endpoint


class Accepted:
    """The worker has the weights of its generation."""

    reason = "refused: its weights are not those of its generation"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return not endpoint.refusal


class SameIdentity:
    """The worker has the weights that the answer began with."""

    reason = "without the weights that the answer began with"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return not request.identity or identity_of(endpoint.record) == request.identity


class Awake:
    """The worker has its weights and a KV cache."""

    reason = "asleep"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return not endpoint.record.sleeps


class NotDraining:
    """The worker takes new work."""

    reason = "draining"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return not endpoint.draining


class Ready:
    """The worker has answered its canary."""

    reason = "not ready"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return endpoint.ready


class NotExcluded:
    """The worker has not failed this request before."""

    reason = "failed before"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return not request.excluded or endpoint.record.worker not in request.excluded


class FitsContext:
    """The worker takes sequences of the request's greatest possible length."""

    reason = "too small"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        needed = request.num_prompt_tokens + request.max_tokens
        return needed <= endpoint.record.max_model_len


class Understands:
    """The worker's version knows all fields of the request: it would ignore unknown ones."""

    reason = "too old for the request"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return endpoint.software.protocol_minor >= request.protocol_minor


class ServesAdapters:
    """The worker serves adapters, if the request asks for one. It loads what it lacks."""

    reason = "without adapters: see --enable-lora"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return request.adapter is None or endpoint.adapters.max_adapters > 0


class Makes:
    """The worker makes what is wanted: an answer, or vectors of the wanted kind."""

    reason = "for something else"

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        vectors = endpoint.software.vectors
        if request.pool_task is None:
            return vectors is None or not vectors.is_only
        return vectors is not None and request.pool_task in vectors.facts.tasks


class SharesKVWith:
    """The worker computes keys and values that the decode worker can use."""

    reason = "incompatible with the decode worker's blocks"

    def __init__(self, decode: Endpoint) -> None:
        self._decode = decode.record

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        ours, theirs = endpoint.record, self._decode
        if ours.model != theirs.model:
            return False
        if ours.block_size == theirs.block_size:
            return ours.namespace == theirs.namespace
        # The block size is in the namespace. Workers that name no identity know their own only.
        return bool(ours.identity) and ours.identity == theirs.identity


class FitsBlocksOf:
    """The worker's blocks consist of whole ones of the decode worker, or the other way round."""

    def __init__(self, decode: Endpoint) -> None:
        self._decode = decode
        self.reason = (
            f"of a block size that neither divides the {decode.record.block_size} tokens of "
            f"{decode.name} nor is a multiple of them"
        )

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return fit(endpoint.record.block_size, self._decode.record.block_size)


class KnowsBlocksOf:
    """Both workers know what to do with blocks of another size, if theirs differ."""

    reason = "too old for the decode worker's block size, or that worker for its own"

    def __init__(self, decode: Endpoint) -> None:
        self._decode = decode

    def keeps(self, request: RoutingRequest, endpoint: Endpoint) -> bool:
        """See Filter."""
        return endpoint.record.block_size == self._decode.record.block_size or all(
            each.software.protocol_minor >= BLOCK_SIZES_MINOR for each in (endpoint, self._decode)
        )


def handing_to(decode: Endpoint) -> tuple[Filter, ...]:
    """Return the filters of workers that compute prompts for a decode worker."""
    return SharesKVWith(decode), FitsBlocksOf(decode), KnowsBlocksOf(decode)
