"""A store of adapters, made from an engine's settings, and the models that it reads for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shared.adapters.reading import read_adapter
from shared.engine.adapters.base import AdapterModel
from shared.engine.adapters.store import AdapterStore
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shared.engine.adapters.base import Adapter
    from shared.engine.adapters.folders import AdapterFolders
    from shared.engine.settings.engine import EngineConfig
    from shared.model.loaded import LoadedModel
    from shared.model.spec.decoder import DecoderSpec


def build_store(config: EngineConfig, folders: AdapterFolders) -> AdapterStore | None:
    """Return an empty store; None if the settings ask for no adapters."""
    if not config.enable_lora:
        return None
    return AdapterStore(
        folders,
        max_host=config.num_host_adapters,
        max_pinned=config.num_host_adapters - config.max_loras,
    )


def attach(store: AdapterStore | None, loaded: LoadedModel, config: EngineConfig) -> None:
    """Let a store read adapters of this model, which it refers to until it gets another one.

    Raises:
        ConfigError: the model takes none.
    """
    if store is None:
        return
    if not isinstance(loaded.model, AdapterModel):
        raise ConfigError("enable_lora: this implementation of the model takes no adapters")
    # A rank's part of a model takes adapters of the whole.
    base = _Base(loaded.spec, loaded.model.adapter_linears)
    store.attach(partial(_read, base, config.max_lora_rank))


@dataclass(frozen=True, slots=True)
class _Base:
    """See `AdapterBase`."""

    spec: DecoderSpec
    adapter_linears: Mapping[str, tuple[int, int]]


def _read(base: _Base, max_rank: int, folder: Path) -> Adapter:
    return read_adapter(folder, base, max_rank=max_rank)
