"""Streams one completion from an OpenAI server and times its chunks."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from benchmarks.load.asking.event_stream import EventDecoder
from benchmarks.load.outcome import Outcome

if TYPE_CHECKING:
    from benchmarks.load.workload.sample import Sample

ERROR_LENGTH = 300


class Delta(msgspec.Struct):
    """The delta of a chat chunk."""

    content: str | None = None


class Choice(msgspec.Struct):
    """Text of a completion, delta of a chat."""

    text: str | None = None
    delta: Delta | None = None


class Usage(msgspec.Struct):
    """Token counts of the server."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Chunk(msgspec.Struct):
    """What is read of an event; all else is skipped while parsing."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


class StreamError(Exception):
    """The answer is not whole. The message is for the report."""


class CompletionClient:
    """Speaks /v1/completions, or /v1/chat/completions if `chat`."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        endpoint: str,
        chat: bool,
        body: dict[str, Any],
        request_id_prefix: str,
        timeout_s: float,
    ) -> None:
        self._http = http
        self._endpoint = endpoint
        self._chat = chat
        self._body = body
        self._request_id_prefix = request_id_prefix
        self._timeout_s = timeout_s
        self._decoder = msgspec.json.Decoder(Chunk)

    async def complete(self, sample: Sample, request_id: str) -> Outcome:
        """Send one request and read its answer to the end. What goes wrong is in the outcome."""
        outcome = Outcome(prompt_len=sample.prompt_len)
        request = self._http.build_request(
            "POST",
            self._endpoint,
            content=self._encode(sample),
            headers={
                "content-type": "application/json",
                "x-request-id": self._request_id_prefix + request_id,
            },
        )
        outcome.start_s = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._read(request, outcome)
        except TimeoutError:
            outcome.error = f"no whole answer within {self._timeout_s:g} s"
        except (httpx.HTTPError, StreamError, msgspec.DecodeError) as error:
            outcome.error = _describe(error, outcome)
        return outcome

    def _encode(self, sample: Sample) -> bytes:
        body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        if self._chat:
            body["messages"] = [{"role": "user", "content": sample.prompt}]
            body["max_completion_tokens"] = sample.output_len
        else:
            body["prompt"] = sample.prompt
            body["max_tokens"] = sample.output_len
        return msgspec.json.encode(body | self._body)

    async def _read(self, request: httpx.Request, outcome: Outcome) -> None:
        response = await self._http.send(request, stream=True)
        try:
            if response.status_code != HTTPStatus.OK:
                raise StreamError(describe_refusal(response.status_code, await response.aread()))
            done = await self._read_chunks(response, outcome)
        finally:
            await response.aclose()
        if not outcome.num_chunks:
            raise StreamError("the answer held no chunk with choices, so there is no TTFT")
        if not done:
            raise StreamError("the stream ended before [DONE]")

    async def _read_chunks(self, response: httpx.Response, outcome: Outcome) -> bool:
        events = EventDecoder()
        done = False
        texts: list[str] = []
        async for data in response.aiter_bytes():
            # Taken before parsing: chunks that arrive together have the same time.
            at_s = time.perf_counter()
            for event in events.feed(data):
                if event == b"[DONE]":
                    done = True
                else:
                    texts += self._take(event, at_s, outcome)
        outcome.text = "".join(texts)
        return done

    def _take(self, event: bytes, at_s: float, outcome: Outcome) -> list[str]:
        chunk = self._decoder.decode(event)
        if chunk.error:
            raise StreamError(f"error in the stream: {_error_message(chunk.error)}")
        if chunk.usage is not None:
            outcome.output_len = chunk.usage.completion_tokens or 0
            outcome.prompt_len = chunk.usage.prompt_tokens or outcome.prompt_len
        if not chunk.choices:
            return []
        outcome.add_chunk(at_s)
        choice = chunk.choices[0]
        return [choice.text or (choice.delta.content if choice.delta else None) or ""]


def describe_refusal(status: int, body: bytes) -> str:
    """A line about an answer that is not 200: OpenAI's message, or the start of the body."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    try:
        message = _error_message(msgspec.json.decode(body))
    except msgspec.DecodeError:
        message = body.decode(errors="replace")
    return f"HTTP {status} {phrase}: {message.strip()[:ERROR_LENGTH]}".rstrip(": ")


def _error_message(error: Any) -> str:
    """OpenAI's `{"error": {"message": …}}` or any part of it, FastAPI's `detail`, else as it is."""
    if isinstance(error, dict):
        for key in ("error", "message", "detail"):
            if error.get(key):
                return _error_message(error[key])
    return str(error)


def _describe(error: Exception, outcome: Outcome) -> str:
    name = "" if isinstance(error, StreamError) else f"{type(error).__name__}: "
    # The number of chunks would make every message different; whether there were any says enough.
    when = " (after the first token)" if outcome.num_chunks else ""
    return f"{name}{error}{when}"
