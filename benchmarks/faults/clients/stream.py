"""One request of a client, over gRPC with the SDK or over HTTP, and all that came back."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import msgspec

from baton_client import BatonError, DeadlineError
from benchmarks.load.asking.event_stream import EventDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_client import AsyncBaton
    from benchmarks.faults.clients.ask import Ask

#: Longest time for one request: what takes longer hangs.
REQUEST_TIMEOUT_S = 25.0
#: What OpenAI's own client does before it has seen a byte of the answer.
HTTP_ATTEMPTS = 4
HTTP_PAUSE_S = 0.25


@dataclass(slots=True)
class Record:
    """What became of a request."""

    request_id: str
    ask: Ask
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    #: When each piece came.
    times_s: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    finished: list[bool] = field(default_factory=list)
    error: str | None = None
    hung: bool = False
    cancelled: bool = False
    #: Whether its client goes on at another router.
    resumes: bool = False
    on_token: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        self.tokens = [[] for _ in range(self.ask.n)]
        self.finished = [False] * self.ask.n

    @property
    def num_tokens(self) -> int:
        """Of all answers, so far."""
        return sum(map(len, self.tokens))

    @property
    def complete(self) -> bool:
        """Whether every answer came to its end."""
        return all(self.finished) and self.error is None

    @property
    def num_wrong(self) -> int:
        """Tokens that are not what the oracle says, in what came; nothing may be missing either."""
        wrong = 0
        for got, right, done in zip(self.tokens, self.ask.expected, self.finished, strict=True):
            wrong += sum(a != b for a, b in zip(got, right.token_ids, strict=False))
            wrong += max(0, len(got) - len(right.token_ids))
            wrong += max(0, len(right.token_ids) - len(got)) if done else 0
        return wrong

    def take(self, index: int, token_ids: list[int], *, finished: bool) -> None:
        """A piece has come."""
        self.times_s.append(time.monotonic())
        self.tokens[index] += token_ids
        self.finished[index] = self.finished[index] or finished
        if self.on_token is not None and token_ids:
            self.on_token(self.num_tokens)

    def end(self, error: str | None = None) -> None:
        """Nothing more will come."""
        self.ended_s = time.monotonic()
        self.error = error
        if error is None and not all(self.finished) and not self.cancelled:
            self.error = "the stream ended before its answers did"


class Client(Protocol):
    """Asks a cluster."""

    async def run(self, record: Record) -> None:
        """Send the request and read to its end; what goes wrong is in the record."""
        ...


class SdkClient:
    """The gRPC SDK, as users have it."""

    def __init__(self, baton: AsyncBaton) -> None:
        self._baton = baton

    async def run(self, record: Record) -> None:
        """See `Client`."""
        record.resumes = True
        stream = self._baton.stream_generate(
            list(record.ask.prompt),
            request_id=record.request_id,
            timeout_s=REQUEST_TIMEOUT_S,
            **record.ask.params,
        )
        try:
            async with stream:
                async for piece in stream:
                    done = piece.finish_reason is not None
                    record.take(piece.index, list(piece.token_ids), finished=done)
        except DeadlineError as error:
            record.hung = True
            record.end(f"{type(error).__name__}: {error}")
        except BatonError as error:
            record.end(f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            record.cancelled = True
            record.end()
            raise
        else:
            record.end()


class HttpClient:
    """`/v1/completions` with server-sent events; repeats what failed before its first byte."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = f"{url}/v1/completions"

    async def run(self, record: Record) -> None:
        """See `Client`."""
        try:
            error: str | None = None
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                for attempt in range(HTTP_ATTEMPTS):
                    error = await self._attempt(record)
                    if error is None or record.times_s:
                        break
                    await asyncio.sleep(HTTP_PAUSE_S * 2**attempt)
            record.end(error)
        except TimeoutError:
            record.hung = True
            record.end(f"no whole answer within {REQUEST_TIMEOUT_S:g} s")

    async def _attempt(self, record: Record) -> str | None:
        body = {
            "prompt": list(record.ask.prompt),
            "stream": True,
            "return_token_ids": True,
            **record.ask.params,
        }
        headers = {"x-request-id": record.request_id}
        events = EventDecoder()
        try:
            async with self._http.stream("POST", self._url, json=body, headers=headers) as reply:
                if reply.status_code != httpx.codes.OK:
                    return f"HTTP {reply.status_code}: {(await reply.aread())[:300].decode()}"
                async for data in reply.aiter_bytes():
                    for event in events.feed(data):
                        if event != b"[DONE]" and (error := take_event(record, event)):
                            return error
        except httpx.HTTPError as failure:
            return f"{type(failure).__name__}: {failure}"
        return None


def take_event(record: Record, event: bytes) -> str | None:
    """Read one server-sent event into a record; returns the error that it reports, if it does."""
    chunk: dict[str, Any] = msgspec.json.decode(event)
    if chunk.get("error"):
        return str(chunk["error"])[:300]
    for choice in chunk.get("choices") or ():
        done = choice.get("finish_reason") is not None
        record.take(choice["index"], list(choice.get("token_ids") or ()), finished=done)
    return None
