"""How long a request waits for its KV blocks after the prompt was computed.

A router, a prefill and a decode worker, one request at a time: every prompt is new, so all of its
blocks move. What is exposed runs from the prefill worker's first token until the last block was
verified; the client sees none of it in its time to first token, and all of it before the second.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from baton.v1 import common_pb2, router_pb2
from benchmarks.handoff.systems import running_cluster

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Exposure:
    """Medians over the requests of one connector."""

    connector: str
    prefill_ms: float
    transfer_ms: float
    exposed_ms: float
    num_bytes: int

    @property
    def share(self) -> float:
        """Of the prefill time."""
        return self.exposed_ms / self.prefill_ms


async def expose(
    model: Path, connector: str, *, chunk: int, input_len: int, num_requests: int
) -> Exposure:
    """Ask one request after the other; the first warms up.

    Raises:
        RuntimeError: a request's blocks took another way, or none.
    """
    timings: list[common_pb2.Timings] = []
    rng = random.Random(connector)
    async with running_cluster(model, chunk, connector) as router:
        for number in range(num_requests + 1):
            ids = [rng.randrange(300, 30000) for _ in range(input_len)]
            request = router_pb2.GenerateRequest(
                request_id=f"overlap-{connector}-{number}",
                prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=ids)),
                params=router_pb2.GenerationParams(max_tokens=4, temperature=0.0, ignore_eos=True),
            )
            pieces = [piece async for piece in router.Generate(request, timeout=600)]
            timings.append(pieces[-1].timings)
            if timings[-1].connector != connector:
                raise RuntimeError(f"{connector}: the blocks came by {timings[-1].connector!r}")
    counted = timings[1:]
    return Exposure(
        connector,
        statistics.median(timing.prefill_ms for timing in counted),
        statistics.median(timing.transfer_ms for timing in counted),
        statistics.median(timing.transfer_exposed_ms for timing in counted),
        counted[-1].transfer_bytes,
    )


def table_of(rows: Sequence[Exposure], *, title: str) -> Table:
    """One row per connector."""
    table = Table(
        *("", "prefill, ms", "transfer, ms", "exposed, ms", "of prefill", "MiB moved"), title=title
    )
    for row in rows:
        table.add_row(
            row.connector,
            f"{row.prefill_ms:.1f}",
            f"{row.transfer_ms:.1f}",
            f"{row.exposed_ms:.2f}",
            f"{row.share:.1%}",
            f"{row.num_bytes / (1 << 20):.1f}",
        )
    return table
