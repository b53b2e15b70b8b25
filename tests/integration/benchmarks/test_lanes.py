"""Connections are reused by requests that follow each other, and never shared by two at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks.load.asking.client import CompletionClient
from benchmarks.load.asking.server import open_http
from benchmarks.load.settings import ServerSettings
from benchmarks.load.workload.datasets import Sample
from tests.fakes.servers.openai_server import Fault, Script, openai_server

if TYPE_CHECKING:
    from benchmarks.load.outcome import Outcome


async def send_waves(script: Script, *waves: int, timeout_s: float = 30.0) -> list[list[Outcome]]:
    """Send waves of simultaneous requests, each after the last one has been answered."""
    with openai_server(script) as url:
        async with open_http(ServerSettings(base_url=url)) as http:
            client = CompletionClient(
                http,
                endpoint="/v1/completions",
                chat=False,
                body={},
                request_id_prefix="",
                timeout_s=timeout_s,
            )
            sample = Sample([1, 2, 3], 3, 2)
            return [
                await asyncio.gather(*(client.complete(sample, str(i)) for i in range(num)))
                for num in waves
            ]


async def test_a_connection_is_reused_by_the_next_request() -> None:
    script = Script(first_token_s=0, gap_s=0)
    waves = await send_waves(script, 1, 1, 1)
    assert all(outcome.success for wave in waves for outcome in wave)
    assert len(set(script.ports)) == 1


async def test_requests_at_once_have_a_connection_each() -> None:
    script = Script(first_token_s=0.3)
    waves = await send_waves(script, 5, 5)
    assert all(outcome.success for wave in waves for outcome in wave)
    assert len(set(script.ports[:5])) == 5
    assert set(script.ports[5:]) == set(script.ports[:5])


async def test_a_broken_connection_is_not_used_again() -> None:
    faults = {0: Fault.DISCONNECT, 1: Fault.STALL}
    script = Script(first_token_s=0, gap_s=0, faults=faults)
    waves = await send_waves(script, 1, 1, 1, 1, timeout_s=1.0)
    assert [wave[0].success for wave in waves] == [False, False, True, True]
    assert len(set(script.ports[:3])) == 3
    assert script.ports[2] == script.ports[3]
