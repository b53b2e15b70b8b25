"""`python -m benchmarks.speculation.hand_off`: what hidden states cost an answer at its hand-off.

A router, a prefill and a decode process; the head's weights are random, so this says nothing of how
often it is right. One request at a time, prompts of different tokens; the columns are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from baton.v1 import common_pb2, router_pb2
from benchmarks.handoff.systems import running_cluster
from benchmarks.peers.models import MODELS
from benchmarks.speculation.following import following_folder
from shared.model.drafts.random_heads import HeadSpec, write_random_head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.v1 import router_pb2_grpc

_OUTPUT_LEN = 8
_CHUNK = 512
_HEADER = (
    "connector", "prompt", "hand_off", "KV MB", "exposed ms", "first token ms", "second after ms",
)  # fmt: skip


async def measure(
    stub: router_pb2_grpc.RouterAsyncStub, prompt: Sequence[int]
) -> tuple[float, float, float, float]:
    """Megabytes of KV, milliseconds exposed, until the first token, and from it to the second."""
    request = router_pb2.GenerateRequest(
        prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt)),
        params=router_pb2.GenerationParams(
            max_tokens=_OUTPUT_LEN, temperature=0.0, ignore_eos=True
        ),
    )
    times, timings = [time.monotonic()], common_pb2.Timings()
    async for piece in stub.Generate(request, timeout=600):
        if piece.token_ids:
            times.append(time.monotonic())
        if piece.HasField("timings"):
            timings = piece.timings
    first, second = [(b - a) * 1e3 for a, b in pairwise(times)][:2]
    return timings.transfer_bytes / 1e6, timings.transfer_exposed_ms, first, second


async def run(method: str, name: str, lengths: Sequence[int], rounds: int) -> Table:
    """One cluster for each connector and way."""
    model, rng = following_folder(name), random.Random(0)
    table = Table(*_HEADER, title=f"{name}, {method}, medians of {rounds}")
    with tempfile.TemporaryDirectory() as folder:
        head = Path(folder) / method
        write_random_head(head, model, HeadSpec(method=method))
        settings = {"method": method, "model": str(head), "num_speculative_tokens": 3}
        for connector in ("shm", "zmq"):
            for hand_off in ("none", "auto", "transfer"):
                flags = ("--speculative-config", json.dumps(settings | {"hand_off": hand_off}))
                async with running_cluster(model, _CHUNK, connector, *flags) as stub:
                    for length in lengths:
                        seen = []
                        for _ in range(rounds + 1):
                            prompt = [rng.randrange(300, 1000) for _ in range(length)]
                            seen.append(await measure(stub, prompt))
                        # The first one shakes hands.
                        medians = [median(column) for column in zip(*seen[1:], strict=True)]
                        cells = [f"{value:.2f}" for value in medians]
                        table.add_row(connector, str(length), hand_off, *cells)
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=("eagle", "eagle3"), default="eagle3")
    parser.add_argument("--model", choices=tuple(MODELS), default="small")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1500])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    Console().print(asyncio.run(run(args.method, args.model, args.lengths, args.rounds)))


if __name__ == "__main__":
    main()
