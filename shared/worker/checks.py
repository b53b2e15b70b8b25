"""Checks before a worker starts and before anything is loaded. Imports no torch.

A worker runs them first; `baton up` runs them before it starts a process.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shared.connector.registry import require_known
from shared.errors import ConfigError, ModelLoadError
from shared.identity import Role
from shared.model.checks import check_model
from shared.worker.doors import require_guarded_doors

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
    model = check_model(
        settings.model,
        dtype=settings.dtype,
        load_format=settings.load_format,
        quantization=settings.quantization,
        attention_backend=settings.attention_backend,
        device=engine.device,
    )
    engine.check_model_limit(model.max_model_len)
    if role is Role.DECODE:
        _check_draft(engine)


def _check_draft(engine: EngineConfig) -> None:
    """Check the checkpoint of a draft model; other methods check their own."""
    speculation = engine.speculation
    if speculation is None or speculation.method != "draft_model" or speculation.model is None:
        return
    try:
        check_model(
            Path(speculation.model),
            dtype=speculation.dtype,
            load_format=speculation.load_format,
            quantization=speculation.quantization,
            device=engine.device,
        )
    except (ConfigError, ModelLoadError) as error:
        raise ConfigError(f"speculative_config: model: {error}") from error
