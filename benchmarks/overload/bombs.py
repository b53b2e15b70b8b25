"""One tenant's huge schemas beside another tenant's short answers, in turns with quiet."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from benchmarks.load.asking.client import CompletionClient
from benchmarks.load.asking.server import open_http
from benchmarks.load.settings import ServerSettings
from benchmarks.load.workload.sample import Sample as Prompt
from benchmarks.overload.cluster import VOCAB_SIZE
from benchmarks.overload.results import BombPart, BombResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from benchmarks.overload.cluster import OverloadCluster

#: Who asks for short answers, and who for huge schemas.
VICTIM, BOMBER = "gold", "iron"
PROMPT_LEN, OUTPUT_LEN = 32, 8
NUM_BOMBERS, NUM_PROPERTIES = 6, 3000
TIMEOUT_S = 60.0
#: What the victim asks for, in turns.
SMALL_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"ignore_eos": True},
    "small schema": {"guided_json": SMALL_SCHEMA},
}
SETTLE_S = 2.0


async def measure(cluster: OverloadCluster, *, turns: int, part_s: float) -> BombResult:
    """Quiet, then bombs, `turns` times."""
    numbers = count()
    await _ask_for(cluster, 3.0, {})  # what is started with the first grammar
    parts: list[BombPart] = []
    statuses: dict[str, int] = {}
    for _ in range(turns):
        parts.append(await _part(cluster, part_s, bombs=False))
        async with _bombs(cluster, numbers, statuses):
            await asyncio.sleep(SETTLE_S)
            parts.append(await _part(cluster, part_s, bombs=True))
    return BombResult(
        parts=parts,
        statuses=statuses,
        num_bombers=NUM_BOMBERS,
        num_properties=NUM_PROPERTIES,
        output_len=OUTPUT_LEN,
    )


def bomb(number: int) -> dict[str, Any]:
    """A schema that no cache has."""
    names = (f"p{number}_{place}" for place in range(NUM_PROPERTIES))
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


async def _part(cluster: OverloadCluster, duration_s: float, *, bombs: bool) -> BombPart:
    ttft_ms: dict[str, list[float]] = {kind: [] for kind in KINDS}
    itl_ms: dict[str, list[float]] = {kind: [] for kind in KINDS}
    errors = await _ask_for(cluster, duration_s, ttft_ms, itl_ms)
    return BombPart(bombs=bombs, ttft_ms=ttft_ms, itl_ms=itl_ms, errors=errors)


async def _ask_for(
    cluster: OverloadCluster,
    duration_s: float,
    ttft_ms: dict[str, list[float]],
    itl_ms: dict[str, list[float]] | None = None,
) -> list[str]:
    """One request after the other."""
    rng = np.random.default_rng(int(time.monotonic() * 1000))
    errors = []
    settings = ServerSettings(base_url=cluster.url, api_key=cluster.keys[VICTIM])
    async with open_http(settings) as http:
        clients = {kind: _client(http, kind, body) for kind, body in KINDS.items()}
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            for kind, client in clients.items():
                prompt = rng.integers(10, VOCAB_SIZE, size=PROMPT_LEN).tolist()
                outcome = await client.complete(
                    Prompt(prompt, PROMPT_LEN, OUTPUT_LEN), f"{time.monotonic_ns()}"
                )
                if outcome.error:
                    errors.append(outcome.error)
                elif itl_ms is not None:
                    ttft_ms[kind].append(outcome.ttft_s * 1000)
                    itl_ms[kind] += [1000 * itl_s for itl_s in outcome.itls_s]
    return errors


def _client(http: httpx.AsyncClient, kind: str, body: dict[str, Any]) -> CompletionClient:
    return CompletionClient(
        http,
        endpoint="/v1/completions",
        chat=False,
        body={"model": "overload", "temperature": 0.0, **body},
        request_id_prefix=f"{kind.split()[0]}-",
        timeout_s=TIMEOUT_S,
    )


@asynccontextmanager
async def _bombs(
    cluster: OverloadCluster, numbers: Iterator[int], statuses: dict[str, int]
) -> AsyncIterator[None]:
    headers = {"authorization": f"Bearer {cluster.keys[BOMBER]}"}
    async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S, headers=headers) as http:
        tasks = [
            asyncio.create_task(_throw(http, cluster.url, numbers, statuses))
            for _ in range(NUM_BOMBERS)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _throw(
    http: httpx.AsyncClient, url: str, numbers: Iterator[int], statuses: dict[str, int]
) -> None:
    while True:
        body = {
            "model": "overload",
            "prompt": "a",
            "max_tokens": 64,
            "temperature": 1.0,
            "guided_json": bomb(next(numbers)),
        }
        try:
            reply = await http.post(f"{url}/v1/completions", json=body)
            status = str(reply.status_code)
            if reply.status_code == httpx.codes.TOO_MANY_REQUESTS:
                await asyncio.sleep(0.1)  # it does not heed Retry-After
        except httpx.HTTPError as error:
            status = type(error).__name__
        statuses[status] = statuses.get(status, 0) + 1
