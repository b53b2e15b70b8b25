"""What a checkpoint is run for, where the settings leave it open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.model.checkpoint.config import read_config
from shared.model.encoders.loading import is_encoder
from shared.pooling.classifier import is_classifier
from shared.pooling.runner import Convert, Runner
from shared.pooling.stored import read_stored_pooling

if TYPE_CHECKING:
    from pathlib import Path

    from shared.pooling.runner import RunnerSettings


def runner_of(settings: RunnerSettings, model_dir: Path) -> Runner:
    """Return GENERATE or POOLING: as the settings say, otherwise as the checkpoint does.

    Raises:
        ModelLoadError: its files of pooling, or its config, cannot be read.
    """
    if settings.runner is not Runner.AUTO:
        return settings.runner
    if settings.convert in (Convert.EMBED, Convert.CLASSIFY):
        return Runner.POOLING
    raw = read_config(model_dir)
    stored = read_stored_pooling(model_dir)
    makes_vectors = stored.is_there or is_classifier(raw, stored) or is_encoder(raw)
    return Runner.POOLING if makes_vectors else Runner.GENERATE


def makes_vectors(settings: RunnerSettings, model_dir: Path) -> bool:
    """Return whether vectors are made of a model, alone or beside its answers.

    Raises:
        ModelLoadError: see `runner_of`.
    """
    if settings.convert in (Convert.EMBED, Convert.CLASSIFY):
        return True
    return runner_of(settings, model_dir) is Runner.POOLING
