"""Checks before a worker starts and before anything is loaded. Imports no torch.

A worker runs them first; `baton up` runs them before it starts a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.connector.registry import require_known
from shared.engine.settings.ranks import check_ranks
from shared.engine.speculation.draft_files import check_draft
from shared.engine.speculation.own_head import check_own_head
from shared.errors import ConfigError
from shared.identity import Role
from shared.model.checks import check_model
from shared.model.families.registry import register_named
from shared.pooling.runner import Runner
from shared.rpc.exposure import require_guard, zmq_host

if TYPE_CHECKING:
    from shared.worker.config import WorkerConfig


def check_worker(config: WorkerConfig, role: Role) -> None:
    """Check the settings and files for known reasons for which this worker cannot start.

    Raises:
        ConfigError, ModelLoadError: the worker cannot start as configured.
    """
    require_guarded_doors(config)
    require_known(config.connectors)
    settings, engine = config.model, config.engine
    check_ranks(config.ranks, engine)
    if config.ranks.size > 1 and engine.device != "cpu":
        raise ConfigError(
            f"{config.ranks.description} on {engine.device}: a worker hands over blocks, and parts "
            "of blocks leave host memory alone. Take one rank on a device, or ranks on a CPU; a "
            "program of one's own (LLM) may have ranks on devices"
        )
    if role is Role.DECODE and config.pooling.runner is Runner.POOLING:
        message = (
            "a decode worker writes answers, and --runner pooling makes none: start prefill "
            "workers alone for this model"
        )
        raise ConfigError(message)
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
        check_draft(engine.speculation, model, device=engine.device)
        if settings.load_format != "dummy":
            check_own_head(engine.speculation, settings.folder, model)


def check_reader(config: WorkerConfig, role: Role) -> None:
    """Check the settings of a worker whose model reads whole texts.

    Raises:
        ConfigError: it cannot start as configured.
    """
    require_guarded_doors(config)
    name = config.model.name
    if role is Role.DECODE or config.pooling.runner is Runner.GENERATE:
        message = f"{name} reads whole texts and writes none: start prefill workers alone for it"
        raise ConfigError(message)
    if config.engine.device != "cpu":
        raise ConfigError(f"{name} reads whole texts, which is done on a CPU alone: --device cpu")
    if config.ranks.size > 1:
        message = f"{name} reads whole texts, in one process: leave out --tensor-parallel-size"
        raise ConfigError(message)
    if config.engine.enable_lora:
        raise ConfigError(f"{name} reads whole texts, and has no adapters: leave out --enable-lora")


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
    if config.ranks.nnodes > 1:
        require_guard(
            config.ranks.master_addr,
            door="--master-addr",
            guarded=access.cluster_token is not None,
            flags="--cluster-token",
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
