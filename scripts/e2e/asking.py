"""How the end-to-end scripts ask a cluster one question, and how they reach it."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import httpx

from baton_client import AsyncBaton

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

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
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 64,
        "temperature": 0,
    }
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
        return (await baton.chat(QUESTION, max_tokens=64, temperature=0)).text


def check_plain_is_refused(door: Door) -> None:
    """A port with TLS answers nobody who speaks without."""
    try:
        answer = httpx.get(f"http://{door.host}:{door.port}/health", timeout=10)
    except httpx.HTTPError as error:
        print(f"  plain HTTP: {error!r}", flush=True)
    else:
        raise AssertionError(f"plain HTTP is answered: {answer!r}")
    with grpc.insecure_channel(f"{door.host}:{door.grpc_port}") as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/grpc.health.v1.Health/Check"
        )
        code = call.future(b"", timeout=10).code()
    assert code is grpc.StatusCode.UNAVAILABLE, f"plain gRPC: {code}"
    print(f"  plain gRPC: {code.name}", flush=True)


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
