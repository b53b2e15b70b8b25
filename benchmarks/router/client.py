"""Streaming clients over raw sockets: they look for stamps in the bytes and parse nothing else.

An HTTP library and a JSON parser cost more per event than the router does, and on a machine of two
cores that would be measured instead of it. What is in the events, the tests check.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import random
import sys
import time
from functools import partial
from pathlib import Path  # noqa: TC003 read at run time by typer
from typing import Annotated, cast

import typer
import uvloop

from benchmarks.router.checkpoint import model_name
from benchmarks.router.stamps import PATTERN, age_ms

_DONE = b"data: [DONE]"
_END_OF_BODY = b"0\r\n\r\n"
_OK = b"HTTP/1.1 200"


class Window:
    """What was received between two points in time."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self._start_ns = start_ns
        self._end_ns = end_ns
        self.ages_ms = array.array("f")
        self.num_events = 0
        self.num_reads = 0
        self.num_requests = 0
        self.num_failed = 0

    def take(self, data: bytes, at_ns: int) -> None:
        """Bytes of an answer that were read together."""
        if self._start_ns <= at_ns < self._end_ns:
            self.num_reads += 1
            self.num_events += data.count(b"data: {")
            self.ages_ms.extend(age_ms(int(stamp), at_ns) for stamp in PATTERN.findall(data))


class Stream(asyncio.Protocol):
    """One connection that asks again as soon as it was answered."""

    def __init__(self, requests: list[bytes], window: Window) -> None:
        self._requests = requests
        self._window = window
        self._transport: asyncio.Transport | None = None
        self._tail = b""
        self._is_new = True
        self._is_done = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send a request."""
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Take events as far as they are whole."""
        at_ns = time.monotonic_ns()
        if self._is_new:
            self._is_new = False
            if not data.startswith(_OK):
                self._fail(data)
                return
        data = self._tail + data
        cut = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
        self._window.take(data[:cut], at_ns)
        self._tail = data[cut:]
        self._is_done = self._is_done or _DONE in data
        if self._is_done and data.endswith(_END_OF_BODY):
            self._window.num_requests += 1
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """The server must not close a connection that is in use."""
        if self._transport is not None:
            self._fail(repr(exc).encode())

    def close(self) -> None:
        """Abort the connection."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def _ask(self) -> None:
        if self._transport is not None:
            self._is_new, self._is_done, self._tail = True, False, b""
            # The first request of each connection is cut short, so that ends do not coincide.
            self._transport.write(self._requests.pop() if self._requests[1:] else self._requests[0])

    def _fail(self, reason: bytes) -> None:
        if not self._window.num_failed:
            sys.stderr.write(f"a stream failed: {reason[:500].decode(errors='replace')}\n")
        self._window.num_failed += 1
        self.close()


def http_request(model: str, endpoint: str, prompt: str, max_tokens: int) -> bytes:
    """The bytes of one request."""
    body: dict[str, object] = {"model": model, "stream": True, "max_tokens": max_tokens}
    body["ignore_eos"] = True
    if endpoint == "chat/completions":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/{endpoint} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def load(
    port: int, window: Window, *, endpoint: str, num_streams: int, prompt: str, max_tokens: int,
    ramp_s: float, end_s: float, num_models: int,
) -> float:  # fmt: skip
    """Hold the streams open until `end_s` of the monotonic clock; returns seconds of CPU used."""
    loop = asyncio.get_running_loop()
    streams: list[Stream] = []
    for number in range(num_streams):
        first = random.randint(1, max_tokens)
        model = model_name(number, num_models)
        requests = [http_request(model, endpoint, prompt, n) for n in (max_tokens, first)]
        _, stream = await loop.create_connection(
            partial(Stream, requests, window), "127.0.0.1", port
        )
        streams.append(stream)
        await asyncio.sleep(ramp_s / num_streams)
    started_cpu_s = time.process_time()
    await asyncio.sleep(end_s - time.monotonic())
    used_s = time.process_time() - started_cpu_s
    for stream in streams:
        stream.close()
    return used_s


def main(
    port: Annotated[int, typer.Option(help="The router's HTTP port.")],
    endpoint: Annotated[str, typer.Option(help="Path below /v1.")],
    streams: Annotated[int, typer.Option(help="Connections to hold.")],
    prompt_chars: Annotated[int, typer.Option(help="Length of every prompt.")],
    max_tokens: Annotated[int, typer.Option(help="Length of every answer.")],
    ramp_s: Annotated[float, typer.Option(help="Seconds in which connections are opened.")],
    start_s: Annotated[float, typer.Option(help="Monotonic time at which measuring begins.")],
    end_s: Annotated[float, typer.Option(help="Monotonic time at which it ends.")],
    result: Annotated[Path, typer.Option(help="File for the result.")],
    models: Annotated[int, typer.Option(help="Models that the streams take turns in.")] = 1,
) -> None:
    """Load a router, and write what was seen to a file."""
    window = Window(int(start_s * 1e9), int(end_s * 1e9))
    prompt = ("The quick brown fox. " * (prompt_chars // 21 + 1))[:prompt_chars]
    used_s = uvloop.run(
        load(
            port, window, endpoint=endpoint, num_streams=streams, prompt=prompt,
            max_tokens=max_tokens, ramp_s=ramp_s, end_s=end_s, num_models=models,
        )
    )  # fmt: skip
    counts = {
        "pid": os.getpid(),
        "num_events": window.num_events,
        "num_reads": window.num_reads,
        "num_requests": window.num_requests,
        "num_failed": window.num_failed,
        "cpu_s": used_s,
    }
    result.with_suffix(".ages").write_bytes(window.ages_ms.tobytes())
    result.write_text(json.dumps(counts), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
