"""Checks before a worker starts and before anything is loaded. Imports no torch.

A worker runs them first; `baton up` runs them before it starts a process.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shared.connector.registry import require_known
from shared.engine.speculation.own_head import check_own_head
from shared.errors import ConfigError, ModelLoadError
from shared.gguf.folder import model_folder
from shared.identity import Role
from shared.model.checks import check_model
from shared.model.families.registry import register_named
from shared.rpc.exposure import require_guard, zmq_host

if TYPE_CHECKING:
    from shared.engine.config import EngineConfig
    from shared.worker.config import WorkerConfig


def check_worker(config: WorkerConfig, role: Role) -> None:
    """Check the settings and files for known reasons for which this worker cannot start.

    Raises:
        ConfigError, ModelLoadError: the worker cannot start as configured.
    """
    require_guarded_doors(config)
    require_known(config.connectors)
    settings, engine = config.model, config.engine
    if settings.model_class:
        register_named(settings.model_class)
    model = check_model(
        settings.folder,
        dtype=settings.dtype,
        load_format=settings.load_format,
        quantization=settings.quantization,
        attention_backend=settings.attention_backend,
        model_impl=settings.model_impl,
        trust_remote_code=settings.trust_remote_code,
        cpu_int4_compute=settings.cpu_int4_compute,
        device=engine.device,
    )
    engine.check_model_limit(model.max_model_len)
    if role is Role.DECODE:
        _check_draft(engine)
        if settings.load_format != "dummy":
            check_own_head(engine.speculation, settings.folder, model)


def require_guarded_doors(config: WorkerConfig) -> None:
    """Look at every socket that the settings open.

    Connectors listen on `host` as well. What comes to them must show a ticket, which a peer gets
    over the guarded gRPC port alone; so they are as open as that port is.

    Raises:
        ConfigError: one would be open to more than this machine.
    """
    access = config.access
    require_guard(
        config.host,
        door="the worker's gRPC port and its connectors",
        guarded=access.cluster_token is not None or config.tls.is_on,
        flags="--cluster-token, or --tls-cert, --tls-key and --tls-ca",
        insecure=access.insecure_bind,
    )
    if config.metrics_port:
        require_guard(
            config.host,
            door="--metrics-port",
            guarded=access.open_metrics,
            flags="--open-metrics",
            insecure=access.insecure_bind,
        )
    for flag, endpoint in (
        ("--kv-events-endpoint", config.kv_events_endpoint),
        ("--kv-events-replay-endpoint", config.kv_events_replay_endpoint),
    ):
        if endpoint is not None:
            require_guard(
                zmq_host(endpoint),
                door=f"{flag} (its events hold the prompts' tokens)",
                guarded=False,
                flags="it an address of this machine",
                insecure=access.insecure_bind,
            )


def _check_draft(engine: EngineConfig) -> None:
    """Check the checkpoint of a draft model; other methods check their own."""
    speculation = engine.speculation
    if speculation is None or speculation.method != "draft_model" or speculation.model is None:
        return
    try:
        check_model(
            model_folder(Path(speculation.model)),
            dtype=speculation.dtype,
            load_format=speculation.load_format,
            quantization=speculation.quantization,
            device=engine.device,
        )
    except (ConfigError, ModelLoadError) as error:
        raise ConfigError(f"speculative_config: model: {error}") from error
