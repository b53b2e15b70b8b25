"""How the end-to-end scripts ask a cluster: one question, or many long answers."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import httpx

from baton_client import AsyncBaton

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

NUM_STREAMS = 12
NUM_TOKENS = 400
QUESTION = "What does os.path.join do?"
MODEL = "pydoc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where a cluster listens on this machine."""

    port: int
    grpc_port: int
    host: str = "127.0.0.1"
    ca_pem: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Of the OpenAI API."""
        return f"{'http' if self.ca_pem is None else 'https'}://{self.host}:{self.port}/v1"

    def client(self, timeout_s: float = 120) -> httpx.AsyncClient:
        """A client of that API."""
        verify: bool | ssl.SSLContext = True
        if self.ca_pem is not None:
            verify = httpx.create_ssl_context()
            verify.load_verify_locations(cadata=self.ca_pem.decode())
        return httpx.AsyncClient(
            base_url=self.url, timeout=timeout_s, verify=verify, headers=self.headers
        )


async def ask_over_http(door: Door) -> dict[str, Any]:
    """One chat answer over the OpenAI API."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64}
    async with door.client() as client:
        answer = await client.post("/chat/completions", json=body)
    answer.raise_for_status()
    content: dict[str, Any] = answer.json()
    return content


def text_of(content: dict[str, Any]) -> str:
    """What a chat answer says."""
    return str(content["choices"][0]["message"]["content"])


async def ask_over_grpc(door: Door) -> str:
    """The same through the SDK."""
    secure = None if door.ca_pem is None else grpc.ssl_channel_credentials(door.ca_pem)
    async with AsyncBaton(f"{door.host}:{door.grpc_port}", credentials=secure) as baton:
        return (await baton.chat(QUESTION, max_tokens=64)).text


async def stream_many(door: Door, after_s: float, event: Callable[[], None]) -> list[str]:
    """Texts of many long answers; `event` is called while they are written."""
    async with door.client() as client:
        tasks = [asyncio.create_task(_long_answer(client, i)) for i in range(NUM_STREAMS)]
        await asyncio.sleep(after_s)
        await asyncio.to_thread(event)
        return list(await asyncio.gather(*tasks))


async def _long_answer(client: httpx.AsyncClient, number: int) -> str:
    body = {
        "model": MODEL,
        "prompt": f"Number {number}:",
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
    }
    answer = await client.post("/completions", json=body)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


def free_ports(number: int) -> Sequence[int]:
    """Loopback ports that nobody uses at the moment."""
    probes = [socket.socket() for _ in range(number)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
