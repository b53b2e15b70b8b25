"""Tries `docker compose up` on a real engine, from nothing to nothing. `make e2e-compose` runs it.

Needs Docker with Compose v2 and the project's virtual environment (for the SDK). Uses a project of
its own, so that a cluster that is running stays as it is. COMPOSE_FILES adds files, e.g. one that
names other base images.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx

from baton_client import AsyncBaton

if TYPE_CHECKING:
    from collections.abc import Sequence

PROJECT = "baton-e2e"
NUM_STREAMS = 12
NUM_TOKENS = 400
QUESTION = "What does os.path.join do?"


class Compose:
    """`docker compose` for one project, on ports of its own."""

    def __init__(self) -> None:
        files = ["compose.yaml", *os.environ.get("COMPOSE_FILES", "").split()]
        self._command = ["docker", "compose", "-p", PROJECT]
        self._command += [word for file in files for word in ("-f", file)]
        self.port, self.grpc_port = _free_port(), _free_port()
        self._environ = {
            **os.environ,
            "PORT": str(self.port),
            "GRPC_PORT": str(self.grpc_port),
        }

    def __call__(self, *words: str) -> str:
        """Run it; its output goes on to the terminal too.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        print(f"$ docker compose {' '.join(words)}", flush=True)
        started_at = time.monotonic()
        done = subprocess.run(
            [*self._command, *words],
            env=self._environ,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        print(f"  {time.monotonic() - started_at:.1f} s", flush=True)
        return done.stdout

    def containers(self, service: str) -> Sequence[str]:
        """Names of a service's running containers."""
        rows = self("ps", "--format", "json", service).splitlines()
        return [json.loads(row)["Name"] for row in rows]


async def ask_over_http(port: int) -> str:
    """One chat answer over the OpenAI API."""
    body = {"model": "pydoc", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64}
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


async def ask_over_grpc(port: int) -> str:
    """The same through the SDK."""
    async with AsyncBaton(f"127.0.0.1:{port}") as baton:
        return (await baton.chat(QUESTION, max_tokens=64)).text


async def stream_many(port: int, after_s: float, event: Any) -> list[str]:
    """Texts of many long answers; `event` is called while they are written."""
    async with httpx.AsyncClient(timeout=120) as client:
        tasks = [asyncio.create_task(_long_answer(client, port, i)) for i in range(NUM_STREAMS)]
        await asyncio.sleep(after_s)
        await asyncio.to_thread(event)
        return list(await asyncio.gather(*tasks))


async def _long_answer(client: httpx.AsyncClient, port: int, number: int) -> str:
    body = {
        "model": "pydoc",
        "prompt": f"Number {number}:",
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
    }
    answer = await client.post(f"http://127.0.0.1:{port}/v1/completions", json=body)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


async def run(compose: Compose) -> None:
    """Every step; an AssertionError or another exception says which one failed."""
    compose("up", "-d", "--wait", "--build")
    over_http = await ask_over_http(compose.port)
    over_grpc = await ask_over_grpc(compose.grpc_port)
    print(f"  over HTTP: {over_http}\n  over gRPC: {over_grpc}")
    assert over_http.strip() == over_grpc.strip()

    compose("up", "-d", "--wait", "--no-recreate", "--scale", "decode=2")
    victim = compose.containers("decode")[-1]
    quiet = await stream_many(compose.port, 0, lambda: None)

    def kill() -> None:
        print(f"$ docker kill {victim}", flush=True)
        subprocess.run(["docker", "kill", victim], check=True, stdout=subprocess.DEVNULL)

    disturbed = await stream_many(compose.port, 0.5, kill)
    assert disturbed == quiet, "an answer changed when a decode worker was killed"
    print(f"  {len(disturbed)} of {NUM_STREAMS} answers complete and equal")


def leftovers() -> list[str]:
    """What of the project Docker still has."""
    found = []
    for kind in ("container", "volume", "network"):
        flags = ["--all"] if kind == "container" else []
        command = [
            "docker",
            kind,
            "ls",
            "-q",
            *flags,
            "--filter",
            f"label=com.docker.compose.project={PROJECT}",
        ]
        found += subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.split()
    return found


def main() -> int:
    """Exit code 0 if all went well."""
    compose = Compose()
    try:
        asyncio.run(run(compose))
    except BaseException:
        print(compose("logs", "--tail", "30"), file=sys.stderr)
        raise
    finally:
        compose("down", "-v")
    left = leftovers()
    assert not left, f"left behind: {left}"
    print("nothing is left behind")
    return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
