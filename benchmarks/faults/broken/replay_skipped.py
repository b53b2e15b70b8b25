"""A decode worker that goes on with a request as if nothing of its answer had been emitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.faults.broken.entry import run_service
from services.decode.servicer import DecodeServicer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from baton.v1 import decode_pb2

_answers = DecodeServicer._answers


def answers(
    self: DecodeServicer, request: decode_pb2.DecodeRequest
) -> AsyncGenerator[decode_pb2.DecodeResponse, None]:
    """As it is, but the tokens to go on from are thrown away."""
    if request.num_resumed_tokens:
        del request.token_ids[-request.num_resumed_tokens :]
        request.num_resumed_tokens = 0
    return _answers(self, request)


if __name__ == "__main__":
    DecodeServicer._answers = answers  # type: ignore[method-assign]  # broken on purpose
    run_service()
