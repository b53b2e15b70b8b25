"""Plain tokens on their short way: from a worker's message to the client's connection."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.router.doors.app import create_app
from services.router.doors.http_server import HttpServer
from services.router.front import Front
from services.router.openai.catalogue import one_model
from services.router.openai.replies.answers import stream_answers
from services.router.openai.replies.client_tap import ClientTap
from services.router.openai.replies.sse import DATA_EDGE, DIRECT_BODY, EventStream
from shared.errors import InternalError, WorkerLostError
from shared.identity import Role
from shared.request.answer import FinishReason
from tests.fakes.scripted.decode import Script, Step, never, one_by_one, say

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from services.router.openai.replies.answers import Part
    from services.router.openai.replies.client_tap import ResponseBody
    from services.router.request.generation import AnswerPiece, GenerationRequest, Generator
    from services.router.request.outlet import Outlet
    from tests.integration.router.conftest import Bench

HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nx-request-id: r\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)


class Texts(list[str]):
    """The texts of pieces, as they come."""

    def __init__(self) -> None:
        super().__init__()
        self._has_more = asyncio.Event()

    def take(self, text: str) -> None:
        self.append(text)
        self._has_more.set()

    async def until(self, wanted: Sequence[str]) -> None:
        """Wait until these are all."""
        async with asyncio.timeout(10):
            while self != list(wanted):
                self._has_more.clear()
                await self._has_more.wait()


class Spied:
    """Another generator, and which way its pieces went."""

    def __init__(self, generator: Generator, *, has_outlet: bool = True) -> None:
        self._generator = generator
        self._has_outlet = has_outlet
        self.given = Texts()
        self.yielded: list[str] = []

    async def generate(
        self, request: GenerationRequest, outlet: Outlet | None = None
    ) -> AsyncIterator[AnswerPiece]:
        """See Generator."""
        passed = None
        if outlet is not None and self._has_outlet:
            passed = outlet.behind(lambda piece: self.given.take(piece.text))
        async for piece in self._generator.generate(request, passed):
            self.yielded.append(piece.text)
            yield piece


class Body:
    """A client's connection."""

    def __init__(self) -> None:
        self.has_room = True
        self.data = b""

    def is_writable(self) -> bool:
        """See ResponseBody."""
        return self.has_room

    def write(self, data: bytes) -> None:
        """See ResponseBody."""
        self.data += data


class Client:
    """Reads one answer of the pipeline by both ways."""

    def __init__(self, bench: Bench, **params: Any) -> None:
        self.body = Body()
        self.texts = Texts()
        self._tap = ClientTap()
        self._parts = stream_answers(
            bench.parts.pipeline, [bench.request(**params)], self._tap.outlet()
        )

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncGenerator[Part]]:
        """Read the first piece, and open the tap."""
        async with aclosing(self._parts) as parts:
            _, piece = await anext(parts)
            self.texts.take(piece.text)
            self._tap.open(self.body, self._take)
            yield parts

    def _take(self, _: ResponseBody, piece: AnswerPiece) -> None:
        self.texts.take(piece.text)


@asynccontextmanager
async def served(
    bench: Bench, *, has_outlet: bool = True
) -> AsyncIterator[tuple[int, Spied, CollectorRegistry]]:
    """The whole application over a real socket."""
    registry = CollectorRegistry()
    front = Front(bench.config, bench.parts.router, registry)
    watched = front.backend(bench.parts.pool, bench.parts.served).generator
    spied = Spied(watched, has_outlet=has_outlet)
    app = create_app(
        one_model(bench.backend(spied)), not_ready_because=tuple, registry=registry, version="0"
    )
    server = HttpServer(app, drain_grace_s=1.0)
    await server.start("127.0.0.1", 0)
    try:
        yield server.port, spied, registry
    finally:
        await server.stop()


async def ask(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"model": "tiny", "prompt": "hi", "max_tokens": 9, "stream": true}'
    writer.write(HEAD % len(body) + body)
    return reader, writer


async def stream(bench: Bench, text: str, *, has_outlet: bool) -> tuple[bytes, Spied, str]:
    """Each token is sent when the client has the one before; its bytes, ways and counts."""
    script, gates = one_by_one(say(*bench.ids(text)))
    bench.workers[0].scripts = [script]
    async with served(bench, has_outlet=has_outlet) as (port, spied, registry):
        reader, writer = await ask(port)
        data = b""
        async with asyncio.timeout(20):
            for gate in gates:
                data += await reader.readuntil(b"\n\n\r\n")
                gate.set()
            data += await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.close()
        counts = [
            line
            for line in generate_latest(registry).decode().splitlines()
            if re.match(r"baton_(tenant_\w+_tokens|generation_tokens|\w+latency\w*_count)", line)
        ]
    return re.sub(rb'"created":\d+|date: [^\r]*', b"", data), spied, "\n".join(counts)


async def test_both_ways_have_the_same_bytes_and_counts(bench: Bench) -> None:
    await bench.add_worker()
    bytes_pushed, pushed, counts_pushed = await stream(bench, "abcdef", has_outlet=True)
    bytes_read, read, counts_read = await stream(bench, "abcdef", has_outlet=False)
    assert bytes_pushed == bytes_read
    assert counts_pushed == counts_read
    assert 'baton_generation_tokens_total{model_name="tiny"} 6.0' in counts_pushed
    assert (pushed.yielded, pushed.given) == (["a", "f"], ["b", "c", "d", "e"])
    assert (read.yielded, read.given) == (list("abcdef"), [])


async def test_a_full_connection_is_not_written_to(bench: Bench) -> None:
    script, gates = one_by_one(say(*bench.ids("abcdefg")))
    await bench.add_worker(script, say(*bench.ids("zz")))
    client = Client(bench)
    async with client.reading() as parts:
        reading = asyncio.ensure_future(anext(parts))
        gates[0].set()
        await client.texts.until("ab")
        client.body.has_room = False
        gates[1].set()
        assert (await reading)[1].text == "c"
        gates[2].set()
        gates[3].set()
        # Its answer follows the rest of this one on the same connection.
        assert (await bench.answer()).text() == "zz"
        client.body.has_room = True
        # What waits comes first, and as one piece.
        assert (await anext(parts))[1].text == "de"
        reading = asyncio.ensure_future(anext(parts))
        gates[4].set()
        await client.texts.until("abf")
        gates[5].set()
        _, last = await reading
        assert (last.text, last.finish_reason) == ("g", FinishReason.LENGTH)
        assert last.usage is not None
        assert last.usage.completion_tokens == 7


async def test_tokens_of_one_step_are_one_piece(bench: Bench) -> None:
    script, gates = one_by_one(say(*bench.ids("abcdef"), per_step=2))
    await bench.add_worker(script)
    client = Client(bench)
    async with client.reading() as parts:
        reading = asyncio.ensure_future(anext(parts))
        gates[0].set()
        await client.texts.until(["ab", "cd"])
        gates[1].set()
        assert (await reading)[1].text == "ef"


async def test_a_stop_string_ends_an_answer_that_is_pushed(bench: Bench) -> None:
    script, gates = one_by_one(say(*bench.ids("abcdefg")))
    worker = await bench.add_worker(script)
    client = Client(bench, stop=("d",))
    async with client.reading() as parts:
        reading = asyncio.ensure_future(anext(parts))
        for gate, wanted in zip(gates, ("ab", "abc"), strict=False):
            gate.set()
            await client.texts.until(wanted)
        [endpoint] = bench.parts.endpoints.of_role(Role.DECODE)
        assert endpoint.work.num_held_tokens == len(bench.ids("hello")) + 3
        gates[2].set()
        _, last = await reading
        assert last.usage is not None
        assert last.usage.completion_tokens == 4
        assert (last.text, last.stop_string) == ("", "d")
        assert last.token_ids == bench.ids("d")
    await worker.wait_cancelled()


async def test_an_answer_goes_on_elsewhere_after_what_was_pushed(bench: Bench) -> None:
    lost = asyncio.Event()
    first, gates = one_by_one(say(*bench.ids("abc")))
    error = Step(error=WorkerLostError("gone"), gate=lost)
    script = Script([*first.steps, error], finish=None)
    await bench.add_worker(script)
    client = Client(bench)
    async with client.reading() as parts:
        reading = asyncio.ensure_future(anext(parts))
        for gate, wanted in zip(gates, ("ab", "abc"), strict=False):
            gate.set()
            await client.texts.until(wanted)
        other = await bench.add_worker(say(*bench.ids("de")))
        lost.set()
        client.texts += [(await reading)[1].text]
        client.texts += [piece.text async for _, piece in parts]
        assert "".join(client.texts) == "abcde"
        [request] = other.requests
        assert request.num_resumed_tokens == 3


async def test_a_client_that_leaves_cancels_an_answer_that_is_pushed(bench: Bench) -> None:
    script, gates = one_by_one(say(*bench.ids("abcd")))
    hang = Script([*script.steps[:3], Step(token_ids=bench.ids("d"), gate=never())])
    worker = await bench.add_worker(hang)
    async with served(bench) as (port, spied, _):
        reader, writer = await ask(port)
        for gate in gates[:2]:
            await reader.readuntil(b"\n\n\r\n")
            gate.set()
        await spied.given.until("bc")
        writer.close()
        await worker.wait_cancelled()


class Writer:
    """Fails at one piece."""

    def event(self, place: int, piece: AnswerPiece) -> bytes:
        """See EventWriter."""
        if piece.text == "c":
            raise InternalError("c is unreadable")
        return piece.text.encode()

    def last_event(self) -> bytes:
        """See EventWriter."""
        return b""


async def test_a_piece_that_cannot_be_written_ends_its_stream_with_an_error(bench: Bench) -> None:
    script, gates = one_by_one(say(*bench.ids("abcd")))
    worker = await bench.add_worker(script)
    tap, body, sent = ClientTap(), Body(), list[bytes]()
    parts = stream_answers(bench.parts.pipeline, [bench.request()], tap.outlet())
    await anext(parts)
    response = EventStream(b"a", parts, Writer(), edge=DATA_EDGE, request_id="r", tap=tap)

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    scope = {"type": "http", "extensions": {DIRECT_BODY: body}}
    streaming = asyncio.ensure_future(response(scope, never_gone, send))
    for gate in gates[:2]:
        await asyncio.sleep(0.05)
        gate.set()
    async with asyncio.timeout(10):
        await streaming
    assert body.data == b"b"
    assert sent[:2] == [b"", b"a"]
    assert b"internal" in sent[2]
    assert sent[2].endswith(DATA_EDGE.done)
    await worker.wait_cancelled()


async def never_gone() -> Any:
    await asyncio.Event().wait()


async def test_a_failure_on_the_short_way_is_of_its_answer_alone(bench: Bench) -> None:
    script, gates = one_by_one(say(*bench.ids("abc")))
    other, other_gates = one_by_one(say(*bench.ids("xyz")))
    await bench.add_worker(script, other)
    client = Client(bench)

    def fail(_: ResponseBody, piece: AnswerPiece) -> None:
        raise ZeroDivisionError(piece.text)

    async with client.reading() as parts:
        client._tap.open(client.body, fail)
        beside = asyncio.ensure_future(bench.answer(gates=other_gates))
        reading = asyncio.ensure_future(anext(parts))
        await asyncio.sleep(0)
        gates[0].set()
        with pytest.raises(ZeroDivisionError, match="b"):
            await reading
        assert (await beside).text() == "xyz"
