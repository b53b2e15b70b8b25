"""A prefill worker that forgets to give blocks back when a call ends before its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.faults.broken.entry import run_service
from services.prefill.servicer import PrefillServicer

if TYPE_CHECKING:
    from shared.engine.thread.request_stream import RequestStream


async def end(self: PrefillServicer, job: Any, stream: RequestStream) -> None:
    """As it is, without the last line."""
    await job.close()
    await stream.aclose()


if __name__ == "__main__":
    PrefillServicer._end = end  # type: ignore[method-assign]  # broken on purpose
    run_service()
