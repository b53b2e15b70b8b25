"""The router as a process: settings, both ports, a worker that joins over the network."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.v1 import router_pb2, router_pb2_grpc
from shared.directory.remote import RemoteDirectory
from tests.fakes.processes.warm_process import WarmProcess
from tests.fakes.scripted.decode import ScriptedDecode, say
from tests.fakes.scripted.router_process import ROOT

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

    from services.router.config import RouterConfig

SITE = "https://chat.example"
ENV = {"PYTHONPATH": ".:proto", "PATH": "/usr/bin:/bin"}


async def _start(*flags: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.router", *flags, env=ENV, stderr=asyncio.subprocess.PIPE
    )


async def _ports(process: Process) -> tuple[int, int]:
    assert process.stderr is not None
    async for line in process.stderr:
        if b'"listening"' in line:
            event = json.loads(line)
            return event["http_port"], event["grpc_port"]
    raise AssertionError("the router ended")


@pytest.fixture
async def router(config: RouterConfig) -> AsyncIterator[tuple[Process, str, str]]:
    process = await _start(
        *("--model", str(config.model), "--host", "127.0.0.1", "--port", "0"),
        *("--grpc-port", "0", "--log-format", "json", "--strict-fields"),
        *("--allowed-origins", f'["{SITE}"]'),
    )
    http_port, grpc_port = await _ports(process)
    yield process, f"http://127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}"
    if process.returncode is None:
        process.kill()
    await process.communicate()


HEALTH = ("", "baton.v1.Router", "baton.v1.Directory")


async def _serving(channel: grpc.aio.Channel, service: str) -> bool:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_router_serves_both_protocols_and_ends_in_order(
    router: tuple[Process, str, str],
) -> None:
    process, url, address = router
    worker = ScriptedDecode()
    async with (
        asyncio.timeout(30),
        httpx.AsyncClient(base_url=url, trust_env=False) as http,
        grpc.aio.insecure_channel(address) as channel,
    ):
        for path, status in (("/live", 200), ("/ready", 503), ("/health", 503), ("/ping", 503)):
            assert (await http.get(path)).status_code == status, path
        health = {name: await _serving(channel, name) for name in HEALTH}
        assert health == {"": False, "baton.v1.Router": False, "baton.v1.Directory": True}
        await worker.start()
        directory = RemoteDirectory(channel)
        await directory.register(worker.record, 60)
        await worker.wait_canaries(1)
        while (await http.get("/health")).status_code != 200:
            pass
        [note] = (await http.get("/ready")).json()["notes"]
        assert note.startswith("no prefill worker is ready")
        while not all([await _serving(channel, name) for name in HEALTH]):
            pass
        worker.scripts = [say(*[70, 71, 72])]
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
        reply = (await http.post("/v1/completions", json=body)).json()
        assert reply["usage"]["completion_tokens"] == 3
        await check_doors(http, body)
        stub = router_pb2_grpc.RouterStub(channel)
        request = router_pb2.GenerateRequest(prompt=router_pb2.Prompt(text="hello"))
        text = "".join([r.text async for r in stub.Generate(request)])
        assert text == reply["choices"][0]["text"]
        metrics = (await http.get("/metrics")).text
        assert re.search(r"baton_generation_tokens_total\S* 6\.0", metrics)
        process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 20) == 0
    await worker.die()


async def check_doors(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    """What the router's flags let in, over a real socket."""
    strange = await http.post("/v1/completions", json={**body, "lora_request": {}})
    assert (strange.status_code, strange.json()["error"]["param"]) == (400, "lora_request")
    plain = {"content-type": "text/plain", "origin": SITE}
    refused = await http.post("/v1/completions", content=json.dumps(body), headers=plain)
    assert refused.status_code == 415
    assert refused.headers["access-control-allow-origin"] == SITE
    asked = {"origin": SITE, "access-control-request-method": "POST"}
    assert (await http.options("/v1/completions", headers=asked)).status_code == 200


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), b"--model is required"),
        (("--model", "/nonexistent"), b"tokenizer.json does not exist"),
        (("--model", ".", "--colour", "red"), b"unknown setting --colour"),
        (("--model", ".", "--port", "70000"), b"--port must be a port"),
        (("--model", ".", "--request-timeout-s", "0"), b"--request-timeout-s must be over 0"),
        (("--model", ".", "--allow-credentials"), b"--allow-credentials needs --allowed-origins"),
        (("--model", ".", "--allowed-origins", "[a"), b"--allowed-origins is not a list in JSON"),
        (("--model", ".", "--max-queue-s", "-1"), b"--max-queue-s must not be negative"),
    ],
)
def test_a_router_that_cannot_start_says_why(
    flags: tuple[str, ...], message: bytes, tmp_path: Path
) -> None:
    log = tmp_path / "router.log"
    with log.open("wb") as written:
        process = WarmProcess(["services.router", *flags], cwd=ROOT, env=ENV, log=written)
    assert process.wait(30) == 2
    said = log.read_bytes()
    assert message in said
    assert b"Traceback" not in said
