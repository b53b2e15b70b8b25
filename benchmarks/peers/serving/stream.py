"""One streamed completion, as times of its chunks while they come."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from benchmarks.load.asking.client import Chunk, describe_refusal
from benchmarks.load.asking.event_stream import EventDecoder
from benchmarks.load.asking.lanes import LaneTransport
from benchmarks.peers.engines.process import PeerError
from benchmarks.peers.serving.base import MODEL_NAME

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


def open_client(url: str) -> httpx.AsyncClient:
    """Without limits of its own, and without the environment's proxies."""
    return httpx.AsyncClient(base_url=url, transport=LaneTransport(), timeout=None)


async def chunk_times(
    http: httpx.AsyncClient, prompt: Sequence[int], num_tokens: int
) -> AsyncIterator[float]:
    """When each chunk with tokens came, on `time.perf_counter`.

    Raises:
        PeerError: the server refused, or reported an error in the stream.
    """
    decoder, events = msgspec.json.Decoder(Chunk), EventDecoder()
    request = http.build_request("POST", "/v1/completions", json=_body(prompt, num_tokens))
    response = await http.send(request, stream=True)
    try:
        if response.status_code != HTTPStatus.OK:
            raise PeerError(describe_refusal(response.status_code, await response.aread()))
        async for data in response.aiter_bytes():
            at_s = time.perf_counter()
            for event in events.feed(data):
                chunk = Chunk() if event == b"[DONE]" else decoder.decode(event)
                if chunk.error:
                    raise PeerError(f"error in the stream: {chunk.error}")
                if chunk.choices:
                    yield at_s
    finally:
        await response.aclose()


async def answer(http: httpx.AsyncClient, prompt: Sequence[int], num_tokens: int) -> float:
    """Read an answer to its end; seconds to its first chunk."""
    started_s = time.perf_counter()
    first_s: float | None = None
    async for at_s in chunk_times(http, prompt, num_tokens):
        if first_s is None:
            first_s = at_s - started_s
    if first_s is None:
        raise PeerError("an answer without tokens")
    return first_s


def _body(prompt: Sequence[int], num_tokens: int) -> dict[str, Any]:
    return {
        "model": MODEL_NAME,
        "prompt": list(prompt),
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
