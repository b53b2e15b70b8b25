"""The weights of one life of a worker, with where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shared.directory.base import WEIGHT_PATH, WEIGHT_VERSION
from shared.errors import InvalidRequestError
from shared.model.families.registry import register_named
from shared.model.loader import load_model
from shared.pooling.choice import runner_of
from shared.pooling.runner import Runner

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.ranks.leader import RankLeader
    from shared.model.loaded import LoadedModel
    from shared.worker.config import WorkerConfig

#: Version of weights that were never updated, as in vLLM.
FIRST_VERSION = "default"


@dataclass(frozen=True, slots=True)
class WeightSource:
    """A checkpoint, and the names of its weights."""

    folder: Path
    #: Chosen by the operator; shown in answers.
    version: str
    generation: int
    #: Whether they came by an update, not by the settings.
    is_update: bool = True

    @property
    def labels(self) -> dict[str, str]:
        """What the worker's record says of them."""
        labels = {WEIGHT_VERSION: self.version}
        return labels | {WEIGHT_PATH: str(self.folder)} if self.is_update else labels


@dataclass(frozen=True, slots=True)
class Weights:
    """Loaded weights: what computes, and its source. The two never part."""

    source: WeightSource
    loaded: LoadedModel

    def check_replaces(self, present: LoadedModel) -> None:
        """Check that these are weights of the same model.

        Raises:
            InvalidRequestError: they are not; names the part that differs.
        """
        for name in ("spec", "dtype"):
            if getattr(self.loaded, name) != getattr(present, name):
                raise InvalidRequestError(
                    f"{self.source.folder} is another model: its {name} differs; start workers "
                    "with it instead",
                    param="path",
                )


def first_source(config: WorkerConfig) -> WeightSource:
    """Return the source in the settings."""
    settings = config.model
    return WeightSource(
        settings.own_folder, FIRST_VERSION, settings.model_generation, is_update=False
    )


def load_weights(config: WorkerConfig, source: WeightSource, leader: RankLeader | None) -> Weights:
    """Load weights as the settings say. Takes the memory of a model beside what is loaded.

    `leader`: of the worker's other ranks, which load them at the same time; None: there are none.

    Raises:
        ConfigError, ModelLoadError: the checkpoint cannot be used like this.
    """
    settings = config.model
    if settings.model_class:
        register_named(settings.model_class)
    load = load_model
    if leader is not None:
        load = partial(leader.load, model_class=settings.model_class)
    folder = settings.changed(source.folder)
    loaded = load(
        folder,
        dtype=settings.dtype,
        load_format=settings.load_format,
        seed=settings.model_seed,
        device=config.engine.device,
        attention_backend=settings.attention_backend,
        model_impl=settings.model_impl,
        trust_remote_code=settings.trust_remote_code,
        quantization=settings.quantization,
        num_threads=config.num_threads,
        bind=config.cpu_threads_bind,
        borrows_cores=config.shares_cores,
        cpu_int4_compute=settings.cpu_int4_compute,
        for_vectors=runner_of(config.pooling, folder) is Runner.POOLING,
    )
    return Weights(source, loaded)
