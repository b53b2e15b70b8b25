"""Both servers on the shipped model in float32, started and ended."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.peers.engines.process import ChildProcess
from benchmarks.peers.engines.systems import installed, plain_environ, vllm_environ
from benchmarks.peers.serving.base import wait_for
from cli.places import ROOT, python_environ
from cli.start.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL = ROOT / "models" / "pydoc" / "checkpoint"
#: What both are told.
_FLAGS = (
    "--host", "127.0.0.1",
    "--served-model-name", "m",
    "--dtype", "float32",
    "--max-model-len", "2048",
    "--max-num-seqs", "16",
    "--seed", "0",
    "--enable-auto-tool-choice",
    "--tool-call-parser", "hermes",
    "--enable-scale-out",
    "--enable-tokenizer-info-endpoint",
    "--trust-request-chat-template",
)  # fmt: skip


@contextmanager
def vllm(folder: Path) -> Iterator[str]:
    """Run vLLM's server while the context lasts; gives its URL."""
    python, port = installed("vllm"), free_port()
    cores = sorted(os.sched_getaffinity(0))[:1]
    command = [str(python), str(python.with_name("vllm")), "serve", str(MODEL)]
    environ = vllm_environ(python, cores) | {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    process = ChildProcess(
        [*command, "--port", str(port), *_FLAGS],
        env=environ,
        log=folder / "vllm.log",
    )
    with _running(process, port, "/health") as url:
        yield url


@contextmanager
def baton(folder: Path) -> Iterator[str]:
    """Run `baton serve` while the context lasts; gives its URL."""
    port = free_port()
    command = [sys.executable, "-P", "-m", "cli", "serve", str(MODEL)]
    environ = plain_environ() | {"PYTHONPATH": python_environ()["PYTHONPATH"]}
    process = ChildProcess(
        [*command, "--port", str(port), "--grpc-port", str(free_port()), *_FLAGS],
        env=environ,
        log=folder / "baton.log",
    )
    with _running(process, port, "/ready") as url:
        yield url


@contextmanager
def _running(process: ChildProcess, port: int, ready: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}{ready}", process.require_running)
        yield url
    finally:
        process.close()
