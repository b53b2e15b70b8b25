"""The cores of this host that a worker lends and borrows, by its settings."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.engine.cores import NO_LEASE
from shared.errors import ConfigError
from shared.model.native.core_lease import CoreLease
from shared.model.native.model import NativeCausalLM
from shared.model.native.threads import plan_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from shared.engine.cores import Cores
    from shared.model.loaded import LoadedModel
    from shared.model.native.core_lease import CoreCounts
    from shared.model.native.threads import LibraryThreads
    from shared.worker.config import WorkerConfig

log = structlog.get_logger(__name__)

#: Memory without a disk behind it, whose pages no writing back holds up.
_MEMORY = Path("/dev/shm")


def open_lease(config: WorkerConfig, loaded: LoadedModel) -> CoreLease | None:
    """Join the workers of this host that lend each other cores; the caller closes it.

    None: the settings do not ask for it, or the model has no threads that could use other cores.

    Raises:
        ConfigError: the file in the settings cannot be used. With `auto` a warning says so.
    """
    if config.core_lease == "off":
        return None
    if not config.shares_cores or not isinstance(loaded.model, NativeCausalLM):
        reason = "the model has ranks" if config.ranks.size > 1 else "no native kernels compute it"
        log.info("core_lease_unused", reason=reason)
        return None
    plan = plan_threads(config.num_threads, config.cpu_threads_bind, borrows=True)
    own, usable = plan.num_threads, plan.num_threads + plan.num_spare
    if config.core_lease != "auto":
        return CoreLease(Path(config.core_lease), own, usable)
    try:
        return CoreLease(_path_of_cluster(config), own, usable)
    except ConfigError as error:
        log.warning("core_lease_unused", reason=str(error))
        return None


def cores_of(lease: CoreLease | None, loaded: LoadedModel) -> Cores:
    """Return the cores of an engine's steps."""
    if lease is None or not isinstance(loaded.model, NativeCausalLM):
        return NO_LEASE
    loaded.model.threads.share(lease)
    return _LeasedCores(loaded.model.threads)


class _LeasedCores:
    """The cores of a native model's threads."""

    def __init__(self, threads: LibraryThreads) -> None:
        self._threads = threads

    def take(self) -> None:
        """See `Cores.take`."""
        self._threads.take_cores()

    def lend(self) -> None:
        """See `Cores.lend`."""
        self._threads.lend_cores()


class CoreCollector(Collector):
    """Reads the lease at each scrape."""

    def __init__(self, counts: Callable[[], CoreCounts], *, model: str) -> None:
        self._counts = counts
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """Yield one family per number."""
        counts, name = self._counts(), self._model
        cores = GaugeMetricFamily(
            "baton_cores",
            "Cores of this worker (own), of these used by others now (lent), and of others used by "
            "this worker now (borrowed).",
            labels=["model_name", "kind"],
        )
        for kind in ("own", "lent", "borrowed"):
            cores.add_metric([name, kind], getattr(counts, kind))
        borrowed = CounterMetricFamily(
            "baton_borrowed_core_seconds",
            "Core seconds that this worker had of others.",
            labels=["model_name"],
        )
        borrowed.add_metric([name], counts.borrowed_s)
        recalled = CounterMetricFamily(
            "baton_borrowed_cores_recalled",
            "Borrowed cores that their owner took back.",
            labels=["model_name"],
        )
        recalled.add_metric([name], counts.recalled)
        yield from (cores, borrowed, recalled)


def _path_of_cluster(config: WorkerConfig) -> Path:
    """Return the file of this user's workers of one directory."""
    directory = config.redis_url or ",".join(sorted(config.directory))
    digest = hashlib.sha256(directory.encode()).hexdigest()[:16]
    folder = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return folder / f"baton-cores-{os.getuid()}-{digest}"
