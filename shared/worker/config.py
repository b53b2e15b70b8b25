"""Settings that prefill and decode workers share."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path  # noqa: TC003 read at run time by the settings loader
from typing import Literal

from shared.address import is_every_host, join_address
from shared.config import flag_name, setting
from shared.engine.settings.choices import SchedulingPolicy
from shared.engine.settings.engine import EngineConfig
from shared.engine.settings.model import (
    ModelSettings,  # noqa: TC001 read at run time by the settings loader
)
from shared.engine.settings.ranks import RankSettings
from shared.errors import ConfigError
from shared.pooling.runner import RunnerSettings
from shared.rpc.exposure import AccessSettings
from shared.rpc.tls.settings import TlsSettings
from shared.telemetry.vllm_names import (
    MetricsNames,  # noqa: TC001 read at run time by the settings loader
)
from shared.worker.reuse_settings import ReuseSettings

MAX_NICENESS = 19


class DrainMode(StrEnum):
    """Handling of running requests when a worker is stopped."""

    FINISH = "finish"
    MOVE = "move"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker process."""

    model: ModelSettings
    name: str = field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}",
        metadata={
            "help": "name of this worker, unique in the cluster; default: made of this machine's"
        },
    )
    directory: tuple[str, ...] = setting(
        (), help="host:port of the router's gRPC services; of each router, if there are several"
    )
    redis_url: str | None = setting(
        None,
        help="Redis as the directory, instead of --directory: redis://…, rediss://… or "
        "redis+sentinel://…",
    )
    redis_password_file: Path | None = setting(
        None, help="file with the password for --redis-url, read again for each connection"
    )
    host: str = setting("127.0.0.1", help="address to listen on, and address for other processes")
    port: int = setting(0, help="port of the gRPC services; 0 takes a free one")
    transfer_port: int = setting(
        0,
        help="port at which the connector over TCP listens, further ranks at the ports after it; 0 "
        "takes free ones",
    )
    advertise_host: str | None = setting(
        None,
        help="address for other processes instead of --host; default: this machine's name if "
        "--host means every address",
    )
    advertise_port: int | None = setting(
        None, help="port of the gRPC services for other processes instead of --port"
    )
    advertise_transfer_port: int | None = setting(
        None, help="port for peers instead of --transfer-port"
    )
    metrics_port: int = setting(0, help="port of /metrics; 0 turns it off")
    connectors: tuple[str, ...] = setting(
        ("shm", "zmq_ipc", "zmq"),
        help="connectors for KV blocks, in order of preference: shm, zmq_ipc, zmq, nixl "
        "(which reads and writes a GPU's blocks without staging)",
    )
    runtime_dir: Path | None = setting(
        None, help="directory for local sockets; by default a private one under the system's"
    )
    transfer_encryption: Literal["auto", "on", "off"] = setting(
        "auto",
        help="whether KV blocks that leave this host are encrypted, and accepted only after a "
        "handshake: on, off, or auto (on if TLS is configured)",
    )
    transfer_packing: Literal["auto", "on", "off"] = setting(
        "off",
        help="whether bfloat16 KV is packed without loss, to three quarters, for zmq and zmq_ipc: "
        "on, off, or auto (where that is measured to be faster); peers that cannot get it as it is",
    )
    ranks: RankSettings = field(default_factory=RankSettings)
    num_threads: int | None = setting(
        None,
        help="threads for computing, which ranks divide; by default one per core that this process "
        "may use",
    )
    niceness: int = setting(
        0,
        help="0 to 19: niceness of this process; other processes on the same cores go first",
    )
    cpu_threads_bind: str | None = setting(
        None,
        help="cores to which the native kernels' threads are bound, e.g. 0,2 or 4-7, one per "
        "thread; by default the system moves threads between cores. Of several ranks, with | "
        "between them: 0-3|4-7",
    )
    core_lease: str = setting(
        "off",
        help="whether this worker lends its cores to other workers of this host while it is idle, "
        "and uses theirs: off, auto (with all of this cluster's), or a file in shared memory (with "
        "all that have the same); needs the native kernels, and one rank",
    )
    transfer_staging_bytes: int = setting(
        2 << 30,
        help="pinned host memory through which a GPU's KV blocks pass, except by nixl; never "
        "less than the longest sequence needs",
    )
    kv_events_endpoint: str | None = setting(
        None,
        help="ZeroMQ endpoint to bind for KV events in vLLM's format, e.g. tcp://127.0.0.1:5557; "
        "they contain the prompts' tokens, and subscribers are not authenticated",
    )
    kv_events_replay_endpoint: str | None = setting(
        None, help="ZeroMQ endpoint for requests of missed events, e.g. tcp://127.0.0.1:5558"
    )
    kv_events_topic: str = setting("", help="topic of the KV events")
    lora_modules: tuple[str, ...] = setting(
        (),
        help="adapters to load at the start: name=path, or JSON objects with name and path; "
        "needs --enable-lora",
    )
    lora_dir: Path | None = setting(
        None,
        help="folder below which adapters may be loaded while the worker runs; without it only "
        "those of --lora-modules",
    )
    max_waiting_requests: int = setting(
        512, help="requests that may wait in addition to --max-num-seqs; further ones are refused"
    )
    transfer_timeout_s: float = setting(60.0, help="longest time of a hand-off, in seconds")
    drain_grace_s: float = setting(30.0, help="seconds that a stopped worker may take to end")
    drain_mode: DrainMode = setting(
        DrainMode.FINISH,
        help="finish: running requests may take most of --drain-grace-s, then other workers "
        "continue them; move: other workers continue all of them at once",
    )
    drain_linger_s: float = setting(
        3.0, help="seconds for which a stopped worker's blocks stay readable for other workers"
    )
    engine_stall_s: float = setting(
        30.0,
        help="seconds of a step after which the engine counts as stuck: the worker is not ready",
    )
    self_check_interval_s: float = setting(
        30.0,
        help="seconds between an idle worker's requests to itself, which show whether it works",
    )
    profiler_dir: Path | None = setting(
        None, help="directory for the files of /start_profile; without it nothing is profiled"
    )
    log_level: str = setting("info", help="debug, info, warning or error")
    log_format: Literal["console", "json"] = setting(
        "console", help="console: columns for people; json: one object per line"
    )
    metrics_names: MetricsNames = setting(
        "baton",
        help="baton, or vllm: /metrics has vLLM's names beside Baton's, for dashboards made for it",
    )
    disable_log_stats: bool = setting(
        False, help="log no line of statistics every ten seconds in which the engine works"
    )
    access: AccessSettings = field(default_factory=AccessSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    reuse: ReuseSettings = field(default_factory=ReuseSettings)
    engine: EngineConfig = field(default_factory=EngineConfig)
    pooling: RunnerSettings = field(default_factory=RunnerSettings)

    @property
    def encrypts_transfers(self) -> bool:
        """Whether transfers are encrypted, by --transfer-encryption."""
        if self.transfer_encryption == "auto":
            return self.tls.is_on
        return self.transfer_encryption == "on"

    @property
    def shares_cores(self) -> bool:
        """Whether cores are lent and borrowed, by --core-lease; ranks keep theirs."""
        return self.core_lease != "off" and self.ranks.size == 1

    def address(self, bound_port: int) -> str:
        """Return host:port for other processes, given the port of the gRPC services."""
        return join_address(self.reachable_host, self.advertise_port or bound_port)

    @property
    def reachable_host(self) -> str:
        """The host in the addresses for other processes."""
        if self.advertise_host is not None:
            return self.advertise_host
        return socket.gethostname() if is_every_host(self.host) else self.host

    def __post_init__(self) -> None:
        if self.engine.scheduling_policy is None:
            policy = SchedulingPolicy.URGENCY
            object.__setattr__(self, "engine", replace(self.engine, scheduling_policy=policy))
        # Another host of a worker serves nothing that is listed.
        has_one = bool(self.directory) != bool(self.redis_url)
        if not has_one and not (self.ranks.node_rank and not self.directory):
            found = "both" if self.directory else "neither"
            raise ConfigError(f"one of --directory and --redis-url is required, not {found}")
        for name in ("engine_stall_s", "self_check_interval_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{flag_name(name)} must be over 0")
        if not 0 <= self.niceness <= MAX_NICENESS:
            raise ConfigError(f"--niceness must be 0 to {MAX_NICENESS}, not {self.niceness}")
        if not self.core_lease:
            raise ConfigError("--core-lease must be off, auto or a path")
        if self.max_waiting_requests < 0:
            raise ConfigError("--max-waiting-requests must not be negative")
        if (self.lora_modules or self.lora_dir) and not self.engine.enable_lora:
            name = "--lora-modules" if self.lora_modules else "--lora-dir"
            raise ConfigError(f"{name} needs --enable-lora")
        if self.kv_events_replay_endpoint and not self.kv_events_endpoint:
            raise ConfigError("--kv-events-replay-endpoint needs --kv-events-endpoint")
