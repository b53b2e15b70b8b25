"""A worker's adapters: loaded by orders, by its settings, and for requests with their folders."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.directory.base import AdapterPlace, AdapterState
from shared.engine.adapters.build import build_store
from shared.engine.adapters.folders import AdapterFolders, parse_modules
from shared.errors import BatonError, ConfigError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from shared.engine.adapters.store import AdapterStore, KnownAdapter
    from shared.engine.engine_stats import EngineStats
    from shared.engine.requests.adapter_requests import AdapterUse
    from shared.request.adapter_ref import AdapterRef
    from shared.worker.config import WorkerConfig


@dataclass(frozen=True, slots=True)
class WorkerAdapters:
    """The adapters of all lives of a worker; `store` is None if it serves none."""

    store: AdapterStore | None
    max_adapters: int
    #: Most of them in host memory.
    max_held: int
    model: str
    #: By name: the paths in the settings.
    modules: Mapping[str, str]

    def load_modules(self) -> None:
        """Load those that the settings name. Blocks.

        Raises:
            ConfigError: one of them cannot be used.
        """
        for name, path in self.modules.items():
            try:
                self.load(name, str(Path(path).absolute()))
            except BatonError as error:
                raise ConfigError(f"--lora-modules: {name}: {error}") from error

    def load(
        self, name: str, path: str, *, replace: bool = False, digest: bytes = b""
    ) -> tuple[KnownAdapter, AdapterRef | None]:
        """See `AdapterStore.load`. Blocks."""
        store = self.required()
        if name == self.model:
            message = f"{name!r} is the model's name"
            raise UnsupportedError(message, param="lora_name")
        return store.load(name, path, replace=replace, digest=digest)

    def required(self) -> AdapterStore:
        """Return the store.

        Raises:
            UnsupportedError: the worker serves no adapters.
        """
        if self.store is None:
            raise UnsupportedError("this worker serves no adapters: see --enable-lora")
        return self.store

    @asynccontextmanager
    async def held(self, adapter: AdapterRef | None) -> AsyncIterator[None]:
        """Keep a request's adapter, if it has one, known; read it from its folder if need be.

        Raises:
            AdapterNotLoadedError: it is not known, and cannot be read.
            UnsupportedError: the worker serves no adapters.
        """
        if adapter is None:
            yield
            return
        store = self.required()
        await asyncio.to_thread(store.ensure, adapter)
        store.enter(adapter)
        try:
            yield
        finally:
            store.leave(adapter.digest)

    def states(self, stats: EngineStats) -> tuple[AdapterState, ...]:
        """Return what a directory hears. May be called in any thread."""
        if self.store is None:
            return ()
        in_memory, use = self.store.in_memory(), stats.adapters
        return tuple(
            AdapterState(
                adapter=known.ref,
                rank=known.rank,
                place=_place(known.ref.digest, in_memory, use),
                load_ms=known.load_ms,
                num_running=0 if use is None else use.running.get(known.ref.digest, 0),
                num_waiting=0 if use is None else use.waiting.get(known.ref.digest, 0),
            )
            for known in self.store.names()
        )

    def name_of(self, digest: bytes) -> str | None:
        """Return a name of an adapter, for events; None: it has none."""
        return None if self.store is None else self.store.name_of(digest)


def open_adapters(config: WorkerConfig) -> WorkerAdapters:
    """Return the adapters of a worker, none of which is loaded.

    Raises:
        ConfigError: the settings contradict each other.
    """
    modules = parse_modules(config.lora_modules)
    paths = frozenset(Path(path).absolute() for path in modules.values())
    folders = AdapterFolders(config.lora_dir, paths)
    store = build_store(config.engine, folders)
    engine = config.engine
    num, num_held = (0, 0) if store is None else (engine.max_loras, engine.num_host_adapters)
    return WorkerAdapters(store, num, num_held, config.model.name, modules)


def _place(digest: bytes, in_memory: set[bytes], use: AdapterUse | None) -> AdapterPlace:
    if use is not None and digest in use.placed:
        return AdapterPlace.DEVICE
    return AdapterPlace.HOST if digest in in_memory else AdapterPlace.KNOWN


class AdapterCollector(Collector):
    """A worker's adapters for Prometheus, read at each scrape."""

    def __init__(
        self, adapters: WorkerAdapters, stats: Callable[[], EngineStats], *, model: str
    ) -> None:
        self._adapters = adapters
        self._stats = stats
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """Yield nothing if the worker serves no adapters."""
        if self._adapters.store is None:
            return
        states = self._adapters.states(self._stats())
        info = GaugeMetricFamily(
            "baton_lora_requests_info",
            "Always 1; the labels have the adapters whose requests run, and wait.",
            labels=["model_name", "running_lora_adapters", "waiting_lora_adapters", "max_lora"],
        )
        running = ",".join(each.adapter.name for each in states if each.num_running)
        waiting = ",".join(each.adapter.name for each in states if each.num_waiting)
        info.add_metric([self._model, running, waiting, str(self._adapters.max_adapters)], 1)
        yield info
        places = GaugeMetricFamily(
            "baton_adapters", "Adapters, by their best place.", labels=["model_name", "place"]
        )
        for place in AdapterPlace:
            places.add_metric([self._model, place.value], sum(s.place is place for s in states))
        yield places
        loading = GaugeMetricFamily(
            "baton_adapter_load_milliseconds",
            "Milliseconds that the last read of an adapter took.",
            labels=["model_name", "adapter"],
        )
        for each in states:
            loading.add_metric([self._model, each.adapter.name], each.load_ms)
        yield loading
