"""What cannot be sent, and how long is waited: messages, times and addresses at their ends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from baton.v1 import router_pb2_grpc
from baton_client import (
    AsyncBaton,
    InvalidRequestError,
    PayloadTooLargeError,
    RetryPolicy,
    UnsupportedError,
)
from baton_client.channels import MAX_MESSAGE_BYTES
from tests.fakes.scripted.router import WORDS, ScriptedRouter, tells

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HUGE = "a" * (17 * 2**20)


@pytest.mark.parametrize("param", ["prompt", "messages"])
async def test_a_prompt_over_the_limit_is_refused_and_not_sent(
    client: AsyncBaton, router: ScriptedRouter, param: str
) -> None:
    ask = client.generate if param == "prompt" else client.chat
    with pytest.raises(InvalidRequestError, match=str(MAX_MESSAGE_BYTES)) as caught:
        await ask(HUGE)
    assert isinstance(caught.value, PayloadTooLargeError)
    assert (caught.value.param, caught.value.status) == (param, None)
    assert router.requests == []


async def test_a_prompt_of_just_the_limit_is_not_the_clients_to_refuse(client: AsyncBaton) -> None:
    """A server of default settings takes 4 MiB in gRPC: it refuses, and is not asked again."""
    with pytest.raises(PayloadTooLargeError, match="larger than max") as caught:
        await client.generate("a" * (MAX_MESSAGE_BYTES - 1000))
    assert caught.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_server_with_a_lower_limit_is_asked_once() -> None:
    """gRPC says it with the status of an overloaded server."""
    counted = CountedCalls()
    server = grpc.aio.server(
        interceptors=[counted], options=[("grpc.max_receive_message_length", 1000)]
    )
    router_pb2_grpc.add_RouterServicer_to_server(ScriptedRouter(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    policy = RetryPolicy(max_attempts=5, base_delay_s=0.001)
    async with AsyncBaton(f"127.0.0.1:{port}", retry=policy) as client:
        with pytest.raises(InvalidRequestError, match=r"larger than max \(\d+ vs\. 1000\)"):
            await client.generate("a" * 2000)
    await server.stop(None)
    assert counted.num_calls == 1


class CountedCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types for it
    """Sees a call before its message is read."""

    def __init__(self) -> None:
        self.num_calls = 0

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Count and go on."""
        self.num_calls += 1
        return await continuation(details)


@pytest.mark.parametrize("timeout_s", [math.inf, 1e300, 1e12, 10**30])
async def test_an_endless_time_is_no_deadline(
    client: AsyncBaton, router: ScriptedRouter, timeout_s: float
) -> None:
    left: list[float | None] = []

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        left.append(context.time_remaining())
        async for response in tells(WORDS)(request, context):
            yield response

    router.scripts.append(script)
    assert (await client.generate("What?", timeout_s=timeout_s)).text == "".join(WORDS)
    assert len(await client.models(timeout_s=timeout_s)) == 1
    assert left == [None]


async def test_a_client_may_wait_for_ever(address: str) -> None:
    async with AsyncBaton(address, timeout_s=math.inf) as client:
        assert (await client.chat("What?")).text == "".join(WORDS)


async def test_a_year_is_sent_as_it_is(client: AsyncBaton, router: ScriptedRouter) -> None:
    left: list[float] = []
    year_s = 365 * 86_400

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        left.append(context.time_remaining())
        async for response in tells(WORDS)(request, context):
            yield response

    router.scripts.append(script)
    await client.generate("What?", timeout_s=year_s)
    assert left == [pytest.approx(year_s, rel=0.01)]


@pytest.mark.parametrize("timeout_s", [0, -1, -math.inf, math.nan, 10**400])
async def test_a_time_that_is_none_is_refused(client: AsyncBaton, timeout_s: float) -> None:
    for ask in (client.generate, client.chat):
        with pytest.raises(InvalidRequestError, match="timeout_s"):
            await ask("What?", timeout_s=timeout_s)
    with pytest.raises(InvalidRequestError, match="timeout_s"):
        await client.models(timeout_s=timeout_s)
    with pytest.raises(InvalidRequestError, match="timeout_s"):
        AsyncBaton(timeout_s=timeout_s)


@pytest.mark.parametrize(
    "address",
    [
        "", ":", ":0", ":50051", "host", "host:", "host:abc", "host:0", "host:-1", "host:65536",
        "host:99999", "host:1:2", "host:1 ", "host:1\n", "host:1_0", "host:٣", "host:1/", "hôte:1",
        "user@host:1", "http://host:1", "a b:1", "::1:50051", "[::1]", "[::g]:1", "[]:1", "unix:",
        "dns:///",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequestError, match="address") as caught:
        AsyncBaton(address)
    assert caught.value.param == "address"
    with pytest.raises(InvalidRequestError, match="address") as caught:
        AsyncBaton(["127.0.0.1:50051", address])
    assert caught.value.param == "address[1]"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:1", "localhost:65535", "a-b.c_d.svc:80", "[::1]:50051", "[fe80::1%eth0]:1",
        "unix:/run/baton.sock", "dns:///router:50051", "ipv4:127.0.0.1:5,127.0.0.1:6",
    ],
)  # fmt: skip
def test_other_addresses_are_taken(address: str) -> None:
    AsyncBaton(address)
    AsyncBaton((address, address))


async def test_other_content_than_text_is_refused_by_its_name(
    client: AsyncBaton, router: ScriptedRouter
) -> None:
    image: Any = {"type": "image_url", "image_url": {"url": "data:,"}}
    parts = [{"type": "text", "text": "What is this?"}, image]
    with pytest.raises(UnsupportedError, match="image_url") as caught:
        await client.chat([{"role": "user", "content": parts}])
    assert caught.value.param == "messages[0].content[1].type"
    assert router.requests == []
