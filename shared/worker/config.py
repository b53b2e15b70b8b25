"""Settings that prefill and decode workers share."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path  # noqa: TC003 read at run time by the settings loader
from typing import Literal

from shared.config import flag_name, setting
from shared.engine.config import EngineConfig
from shared.errors import ConfigError
from shared.gguf.folder import model_folder, model_name
from shared.hub.model import hub_name, local_model
from shared.hub.settings import HubSettings
from shared.rpc.exposure import AccessSettings
from shared.rpc.tls.settings import TlsSettings
from shared.worker.reuse_settings import ReuseSettings

#: Hosts that mean every address of the machine.
MAX_NICENESS = 19
MAX_GENERATION = 2**32
_WILDCARDS = frozenset({"0.0.0.0", "::", ""})


class DrainMode(StrEnum):
    """Handling of running requests when a worker is stopped."""

    FINISH = "finish"
    MOVE = "move"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The model, and how it is loaded. Names as in vLLM."""

    model: Path = setting(
        help="directory of a Hugging Face checkpoint, a GGUF file, or a name on the hub"
    )
    served_model_name: tuple[str, ...] = setting(
        (), help="names that clients use, the first one for routers; default: the directory's name"
    )
    dtype: str = setting("auto", help="auto, float32, bfloat16 or float16")
    load_format: str = setting("auto", help="auto, safetensors or dummy")
    attention_backend: str = setting(
        "auto", help="auto, native (C++ for this CPU), torch or triton"
    )
    model_impl: str = setting(
        "auto",
        help="auto, native, torch or transformers: what computes the model; auto takes the modules "
        "of transformers for an architecture that Baton does not know itself",
    )
    model_class: str = setting(
        "", help="a family of models in Python code of your own, as package.module:NAME"
    )
    trust_remote_code: bool = setting(
        default=False, help="run Python code that is in the model's directory"
    )
    quantization: str = setting(
        "none",
        help="none, int8, fp8 or int4: weights are narrowed while they are loaded "
        "(on a CPU fp8 is slow)",
    )
    cpu_int4_compute: str = setting(
        "auto",
        help="what a CPU multiplies weights of 4 bits with: float (inputs as they are), int8 "
        "(inputs rounded to 8 bits, faster) or auto (int8 for a model in bfloat16)",
    )
    model_seed: int = setting(0, help="seed of the weights with --load-format dummy")
    model_generation: int = setting(
        0,
        help="which generation of the model's weights this is: all its workers must have the same "
        "weights; raise it to change them",
    )
    hub: HubSettings = field(default_factory=HubSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.model_generation < MAX_GENERATION:
            raise ConfigError(f"--model-generation must be 0 to {MAX_GENERATION - 1}")

    @property
    def name(self) -> str:
        """The model's name for routers: one of their names."""
        return (*self.served_model_name, hub_name(self.model) or model_name(self.model))[0]

    @property
    def folder(self) -> Path:
        """The folder to read the model from.

        Raises:
            ConfigError: the model is a GGUF file that cannot be read, or cannot be downloaded.
        """
        return model_folder(local_model(self.model, self.hub))


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
        0, help="port at which the connector over TCP listens; 0 takes a free one"
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
    num_threads: int | None = setting(
        None, help="threads for computing; by default one per core that this process may use"
    )
    niceness: int = setting(
        0,
        help="0 to 19: niceness of this process; other processes on the same cores go first",
    )
    cpu_threads_bind: str | None = setting(
        None,
        help="cores to which the native kernels' threads are bound, e.g. 0,2 or 4-7, one per "
        "thread; by default the system moves threads between cores",
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
    log_level: str = setting("info", help="debug, info, warning or error")
    log_format: Literal["console", "json"] = setting(
        "console", help="console: columns for people; json: one object per line"
    )
    access: AccessSettings = field(default_factory=AccessSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    reuse: ReuseSettings = field(default_factory=ReuseSettings)
    engine: EngineConfig = field(default_factory=EngineConfig)

    @property
    def encrypts_transfers(self) -> bool:
        """Whether transfers are encrypted, by --transfer-encryption."""
        if self.transfer_encryption == "auto":
            return self.tls.is_on
        return self.transfer_encryption == "on"

    def address(self, bound_port: int) -> str:
        """Return host:port for other processes, given the port of the gRPC services."""
        return f"{self.reachable_host}:{self.advertise_port or bound_port}"

    @property
    def reachable_host(self) -> str:
        """The host in the addresses for other processes."""
        if self.advertise_host is not None:
            return self.advertise_host
        return socket.gethostname() if self.host in _WILDCARDS else self.host

    def __post_init__(self) -> None:
        if bool(self.directory) == bool(self.redis_url):
            found = "both" if self.directory else "neither"
            raise ConfigError(f"one of --directory and --redis-url is required, not {found}")
        for name in ("engine_stall_s", "self_check_interval_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{flag_name(name)} must be over 0")
        if not 0 <= self.niceness <= MAX_NICENESS:
            raise ConfigError(f"--niceness must be 0 to {MAX_NICENESS}, not {self.niceness}")
        if self.max_waiting_requests < 0:
            raise ConfigError("--max-waiting-requests must not be negative")
        if self.kv_events_replay_endpoint and not self.kv_events_endpoint:
            raise ConfigError("--kv-events-replay-endpoint needs --kv-events-endpoint")
