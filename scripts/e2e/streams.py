"""Many long answers at once, with something happening in the middle of all of them."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
from prometheus_client.parser import text_string_to_metric_families

from scripts.e2e.asking import MODEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from scripts.e2e.asking import Door

NUM_STREAMS = 12
NUM_TOKENS = 600
#: Long enough to be computed by a prefill worker.
PROMPT = "Where is the file, and what is in it? " * 20
#: So many every stream has had when it happens.
NUM_TOKENS_BEFORE = 20


@dataclass(frozen=True, slots=True)
class Answers:
    """What many requests got."""

    #: By request.
    token_ids: Sequence[Sequence[int]]
    #: How many answers were still being written when it began to happen.
    num_running: int


def stream_many(door: Door, event: Callable[[], None] | None = None) -> Answers:
    """Ask many questions at once; `event` happens when each of them has had its first tokens.

    Raises:
        httpx.HTTPError: a request was refused, or its connection broke.
        AssertionError: an answer is not complete.
    """
    return asyncio.run(_stream_many(door, event or (lambda: None)))


async def _stream_many(door: Door, event: Callable[[], None]) -> Answers:
    answers: list[list[int]] = [[] for _ in range(NUM_STREAMS)]
    # No worker has these prompts from another time: each is handed over anew.
    salt = uuid.uuid4().hex
    all_began = asyncio.Event()
    num_running = 0

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        async for token_ids in _stream(client, number, salt):
            answers[number] += token_ids
            if min(map(len, answers)) >= NUM_TOKENS_BEFORE:
                all_began.set()
        assert len(answers[number]) == NUM_TOKENS, f"{number} got {len(answers[number])} tokens"

    async def happen() -> None:
        nonlocal num_running
        await all_began.wait()
        num_running = sum(len(answer) < NUM_TOKENS for answer in answers)
        await asyncio.to_thread(event)

    async with door.client() as client:
        await asyncio.gather(happen(), *(ask(client, number) for number in range(NUM_STREAMS)))
    return Answers(answers, num_running)


async def _stream(
    client: httpx.AsyncClient, number: int, salt: str
) -> AsyncIterator[Sequence[int]]:
    """Tokens as they come. Every other request is sampled with a seed."""
    body = {
        "model": MODEL,
        "prompt": f"Number {number}: {PROMPT}",
        "cache_salt": salt,
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "temperature": number % 2,
        "seed": number,
        "stream": True,
        "return_token_ids": True,
    }
    async with client.stream("POST", "/completions", json=body) as answer:
        if answer.is_error:
            print(f"  {(await answer.aread()).decode()}", flush=True)
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line or line == "data: [DONE]":
                continue
            content = json.loads(line.removeprefix("data: "))
            assert "error" not in content, content
            for choice in content["choices"]:
                yield choice["token_ids"]


def num_replays(door: Door) -> int:
    """How many answers the router has had another decode worker go on with."""
    answer = httpx.get(f"http://{door.host}:{door.port}/metrics", timeout=30)
    answer.raise_for_status()
    families = text_string_to_metric_families(answer.text)
    samples = (sample for family in families for sample in family.samples)
    return int(sum(s.value for s in samples if s.name == "baton_router_replays_total"))
