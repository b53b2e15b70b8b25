"""Runs cells on one cluster; one that is beyond repair is replaced."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.faults.cell import Bench, gaps_ms, percentile
from benchmarks.faults.clients.ask import load_asks
from benchmarks.faults.clients.load import Load
from benchmarks.faults.clients.oracle import Oracle
from benchmarks.faults.process import launch
from benchmarks.faults.system.cluster import Cluster, ClusterError
from benchmarks.faults.system.model import write_model
from benchmarks.faults.system.scale import FULL
from benchmarks.faults.verdict.result import Cell, Results
from benchmarks.peers.machine.description import revision

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from benchmarks.faults.kinds.base import Fault
    from benchmarks.faults.process import Launch
    from benchmarks.faults.states import State
    from benchmarks.faults.system.scale import Scale

QUIET_S = 6.0
SETTLE_S = 4.0
#: Of the disk that logs and lower tiers share.
DISK_MIB = 96


class Runner:
    """Owns the oracle, the load's requests and the folder; use as a context manager."""

    def __init__(self, *, namespaces: bool, scale: Scale = FULL, launch: Launch = launch) -> None:
        """`launch` starts each process of a cluster."""
        self._namespaces = namespaces
        self._scale, self._launch = scale, launch
        self.folder = Path(tempfile.mkdtemp(prefix="baton-faults-"))
        if namespaces:
            # In a mount namespace of our own: it ends with us.
            options = ["-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs"]
            subprocess.run(["mount", *options, str(self.folder)], check=True)
        model = write_model(self.folder)
        self._model = model
        self.oracle = Oracle(model)
        self._asks = self.oracle.answer_all(load_asks(scale.num_asks))

    def close(self, *, keep_logs: bool = False) -> None:
        """End the oracle and remove the folder; with `keep_logs`, the logs stay."""
        self.oracle.close()
        if self._namespaces:
            if keep_logs:
                self._save_logs()
            subprocess.run(["umount", "--lazy", str(self.folder)], check=False)
        if not keep_logs:
            shutil.rmtree(self.folder, ignore_errors=True)

    @asynccontextmanager
    async def bench(self, *, encrypted: bool = False) -> AsyncIterator[tuple[Cluster, Load, Bench]]:
        """A cluster that is ready, with a load that waits."""
        cluster = Cluster(
            self._model,
            self.folder,
            namespaces=self._namespaces,
            encrypted=encrypted,
            scale=self._scale,
            launch=self._launch,
        )
        async with cluster, Load(cluster, self._asks) as load:
            yield cluster, load, Bench(cluster, load, self.oracle)

    async def run(
        self, cells: Sequence[tuple[Fault, State]], show: Callable[[Cell], None]
    ) -> Results:
        """Run all cells in order; return their results."""
        results = Results(
            machine=f"{platform.machine()}, {os.cpu_count()} cores",
            commit=revision(),
            network="namespaces" if self._namespaces else "loopback",
        )
        left = list(enumerate(cells))
        quiet_ms = 0.0
        while left:
            encrypted = left[0][1][0].encrypted
            async with self.bench(encrypted=encrypted) as (_, load, bench):
                if self._scale.compares_itl:
                    quiet_ms = quiet_ms or await measure_quiet(load)
                while left and left[0][1][0].encrypted == encrypted:
                    number, (fault, state) = left.pop(0)
                    cell = await self._cell(bench, fault, state, number)
                    cell.quiet_p99_ms = quiet_ms
                    results.add(cell)
                    show(cell)
                    if cell.outcome == "cluster lost":
                        break
        return results

    async def _cell(self, bench: Bench, fault: Fault, state: State, number: int) -> Cell:
        started_s = time.monotonic()
        try:
            return await bench.run(fault, state, number)
        except ClusterError as error:
            return Cell(
                fault=fault.name,
                state=state.value,
                is_crash=fault.is_crash,
                outcome="cluster lost",
                problems=[f"the cluster did not recover: {error}"],
                duration_s=time.monotonic() - started_s,
            )

    def _save_logs(self) -> None:
        target = Path(tempfile.gettempdir()) / f"{self.folder.name}-logs"
        target.mkdir(exist_ok=True)
        for log in self.folder.glob("*.log"):
            shutil.copy(log, target)


async def measure_quiet(load: Load) -> float:
    """p99 in ms between the pieces of an answer while nothing is wrong."""
    load.flow()
    await asyncio.sleep(SETTLE_S)
    since_s = time.monotonic()
    await asyncio.sleep(QUIET_S)
    found = percentile(gaps_ms(load.records, since_s, time.monotonic()), 0.99)
    load.pause()
    await load.wait_idle(60)
    return found or 0.0
