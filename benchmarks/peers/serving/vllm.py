"""vLLM as servers: aggregated on all cores, or prefill and decode on a core each over NIXL."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.peers.engines.process import ChildProcess
from benchmarks.peers.engines.systems import (
    MAX_NUM_SEQS,
    how_to_install,
    installed,
    vllm_environ,
)
from benchmarks.peers.places import import_folder, peer_python
from benchmarks.peers.serving.base import MODEL_NAME, wait_for
from cli.start.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.peers.engines.systems import Launch
    from benchmarks.peers.engines.tree import ProcessTree

KV_TRANSFER = {
    "kv_connector": "NixlConnector",
    "kv_role": "kv_both",
    "kv_buffer_device": "cpu",
}


class Instance:
    """One `vllm serve` on some of the cores."""

    def __init__(self, launch: Launch, name: str, cores: Sequence[int], *, nixl: bool) -> None:
        self.port = free_port()
        self.cores = tuple(cores)
        python = installed("vllm")
        self.process = ChildProcess(
            serve_command(python, launch, self.port, nixl=nixl),
            env=vllm_environ(python, cores) | nixl_environ(free_port()),
            log=launch.folder / f"vllm-{name}.log",
        )

    def wait_ready(self) -> None:
        """Wait, then pin: loading moves threads of the NIXL worker to other cores."""
        wait_for(f"http://127.0.0.1:{self.port}/health", self.process.require_running)
        self.process.tree.pin(self.cores)


class VllmServer:
    """One or two instances, and the proxy where there are two."""

    def __init__(
        self, instances: Sequence[Instance], proxy: ChildProcess | None, port: int
    ) -> None:
        self._instances = instances
        self._proxy = proxy
        self._port = port

    @property
    def url(self) -> str:
        """Of the proxy, if there is one."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def trees(self) -> list[ProcessTree]:
        """All processes."""
        return [process.tree for process in self._processes()]

    def wait_ready(self) -> None:
        """Wait for all."""
        for instance in self._instances:
            instance.wait_ready()
        if self._proxy is not None:
            wait_for(f"{self.url}/health", self._proxy.require_running)

    def close(self) -> None:
        """End all."""
        for process in self._processes():
            process.close()

    def _processes(self) -> list[ChildProcess]:
        processes = [instance.process for instance in self._instances]
        return [*processes, self._proxy] if self._proxy else processes


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmAggregated:
    """One server on all cores."""

    name: str = "vllm"

    def missing(self) -> str | None:
        """Needs an environment of its own."""
        return None if peer_python("vllm") else how_to_install("vllm")

    def describe(self) -> dict[str, Any]:
        """Version, and that it has its own defaults."""
        return {"version": version(), "max_num_batched_tokens": "default"}

    def start(self, launch: Launch) -> VllmServer:
        """Start it."""
        instance = Instance(launch, "aggregated", launch.cores, nixl=False)
        return VllmServer([instance], None, instance.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmDisaggregated:
    """Prefill on the first core, decode on the second."""

    name: str = "vllm P/D"

    def missing(self) -> str | None:
        """Needs an environment of its own."""
        return None if peer_python("vllm") else how_to_install("vllm")

    def describe(self) -> dict[str, Any]:
        """Version, and how blocks travel."""
        return {"version": version(), "connector": "NixlConnector, kv_buffer_device cpu"}

    def start(self, launch: Launch) -> VllmServer:
        """Start both and the proxy."""
        prefill, decode = (
            Instance(launch, name, [core], nixl=True)
            for name, core in zip(("prefill", "decode"), launch.cores, strict=True)
        )
        port = free_port()
        proxy = ChildProcess(
            [
                str(installed("vllm")), "-P", "-m", "benchmarks.peers.workers.vllm_proxy",
                "--port", str(port),
                "--prefill", str(prefill.port),
                "--decode", str(decode.port),
            ],
            env={"PYTHONPATH": str(import_folder(launch.folder / "vllm-proxy"))},
            log=launch.folder / "vllm-proxy.log",
        )  # fmt: skip
        return VllmServer([prefill, decode], proxy, port)


def version() -> str:
    """Of the installed vLLM, as its package says."""
    script = "import importlib.metadata as m; print(m.version('vllm'))"
    done = subprocess.run(
        [str(installed("vllm")), "-c", script], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def serve_command(python: Path, launch: Launch, port: int, *, nixl: bool) -> list[str]:
    """`vllm serve`, with what all systems here are given."""
    transfer = ["--kv-transfer-config", json.dumps(KV_TRANSFER)] if nixl else []
    return [
        str(python.with_name("python")), str(python.with_name("vllm")), "serve", str(launch.model),
        "--host", "127.0.0.1",
        "--port", str(port),
        "--served-model-name", MODEL_NAME,
        "--dtype", "bfloat16",
        "--max-model-len", str(launch.max_model_len),
        "--max-num-seqs", str(MAX_NUM_SEQS),
        "--seed", "0",
        *transfer,
    ]  # fmt: skip


def nixl_environ(side_channel_port: int) -> dict[str, str]:
    """For NIXL over this machine's own loopback and shared memory."""
    return {
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel_port),
        "UCX_TLS": "tcp,sm,self",
        "UCX_NET_DEVICES": "lo",
    }
