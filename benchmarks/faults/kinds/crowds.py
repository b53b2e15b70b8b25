"""Too much at once, and clients that do not behave."""

from __future__ import annotations

import asyncio
import random
import socket

import httpx
import msgspec

from benchmarks.faults.clients.ask import FIRST_TOKEN_ID, VOCAB_SIZE, Ask
from benchmarks.faults.clients.stream import Record, take_event
from benchmarks.faults.kinds.base import Fault, Scene
from benchmarks.load.asking.event_stream import EventDecoder

LONG_TOKENS = 1500
SLOW_TOKENS = 400
SLOW_S = 4.0
SLOW_BUFFER_BYTES = 2048


def _ask(seed: str, num_tokens: int, **params: object) -> Ask:
    rng = random.Random(seed)
    prompt = tuple(rng.randrange(FIRST_TOKEN_ID, VOCAB_SIZE) for _ in range(num_tokens))
    return Ask(prompt, {"temperature": 0.0, "ignore_eos": True, **params})


class OutOfBlocks(Fault):
    """Long prompts that need more blocks than all decode workers have."""

    name = "out of blocks"

    def __init__(self) -> None:
        self._asks: list[Ask] = []

    async def prepare(self, scene: Scene) -> None:
        """See `Fault`."""
        if not self._asks:
            asks = [
                _ask(f"long-{n}", LONG_TOKENS, max_tokens=24)
                for n in range(scene.cluster.scale.num_long)
            ]
            self._asks = [scene.oracle.answer(ask) for ask in asks]

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        for ask in self._asks:
            scene.load.ask(ask)

    def touched(self, scene: Scene) -> set[str]:
        """See `Fault`: requests that wait for blocks wait."""
        return set(scene.cluster.processes)


class ClientGone(Fault):
    """The victim's client leaves. What the request held is free at once."""

    name = "client gone"
    cancels = True

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        assert scene.victim is not None
        scene.victim.task.cancel()

    def touched(self, scene: Scene) -> set[str]:
        """See `Fault`."""
        return set()


class SlowClient(Fault):
    """A client that reads nothing for seconds; its answer is whole all the same."""

    name = "slow client"

    def __init__(self) -> None:
        self._ask: Ask | None = None

    async def prepare(self, scene: Scene) -> None:
        """See `Fault`."""
        if self._ask is None:
            ask = _ask("slow", 100, max_tokens=SLOW_TOKENS)
            self._ask = scene.oracle.answer(ask)

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        assert self._ask is not None
        scene.start(self._read_slowly(scene, self._ask))

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        await scene.finish()

    def touched(self, scene: Scene) -> set[str]:
        """See `Fault`."""
        return set()

    async def _read_slowly(self, scene: Scene, ask: Ask) -> None:
        record = Record("fxs-000000", ask)
        address = ("127.0.0.1", scene.cluster.front_http)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER_BYTES)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, address)
            await loop.sock_sendall(client, _post(ask))
            await asyncio.sleep(SLOW_S)
            decoder = EventDecoder()
            while data := await loop.sock_recv(client, 65536):
                for event in decoder.feed(data):
                    if event != b"[DONE]":
                        take_event(record, event)
                if record.complete:
                    break
        if not record.complete or record.num_wrong:
            text = f"the slow client got {record.num_tokens} tokens, {record.num_wrong} wrong"
            scene.problems.append(text)


def _post(ask: Ask) -> bytes:
    body = {"prompt": ask.prompt, "stream": True, "return_token_ids": True, **ask.params}
    request = httpx.Request(
        "POST", "http://front/v1/completions", content=msgspec.json.encode(body),
        headers={"content-type": "application/json", "connection": "close"},
    )  # fmt: skip
    lines = [b"POST /v1/completions HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n" + request.content
