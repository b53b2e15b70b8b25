"""Workers of several models come and go under load, and what must hold meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from benchmarks.catalogue.worker import LEASE_S, ChurnWorker, hashes_of, prompt_of
from cli.processes import ServiceProcess, stop_all
from cli.start.ports import free_port
from shared.directory.remote import RemoteDirectory
from shared.errors import BatonError, UnavailableError
from shared.rpc.channel import ChannelPool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Time for which a worker that left in silence may be known: its lease, and one look at it.
STALE_S = LEASE_S + 1.0
#: A model without a worker may refuse requests for this time after one has joined again.
RETURN_S = 4.0
READY_S = 60.0
SAMPLE_S = 1.0
NUM_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnPlan:
    """What happens, and how often."""

    #: By model: its folder.
    folders: Mapping[str, Path]
    workers_each: int = 2
    clients: int = 6
    #: Mean time between two changes [s].
    change_s: float = 0.5
    #: Of the changes: a model loses all of its workers for a time.
    outage_share: float = 0.1
    outage_s: float = 3.0
    duration_s: float = 10.0
    seed: int = 1


@dataclass(slots=True)
class ChurnResult:
    """What was seen."""

    answered: Counter[str] = field(default_factory=Counter)
    #: Refused while the model had no worker.
    refused: Counter[str] = field(default_factory=Counter)
    #: Refused, failed or answered by the wrong model without such a reason.
    faults: list[str] = field(default_factory=list)
    num_wrong: int = 0
    #: Workers that the directory knew for longer than their lease.
    stale: list[str] = field(default_factory=list)
    num_joined: int = 0
    num_left: int = 0
    num_died: int = 0
    num_outages: int = 0
    rss_mib: list[float] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """The router's memory in the last quarter of the time, over that of the second one."""
        quarter = len(self.rss_mib) // 4
        if not quarter:
            return 1.0
        early, late = self.rss_mib[quarter : 2 * quarter], self.rss_mib[-quarter:]
        return (sum(late) / quarter) / (sum(early) / quarter)


class Churn:
    """A router process, its workers and its clients. `run` once."""

    def __init__(self, plan: ChurnPlan, log_folder: Path) -> None:
        self._plan = plan
        self._port, self._grpc_port = free_port(), free_port()
        models = [f"{name}={folder}" for name, folder in plan.folders.items()]
        flags = ["--models", *models, "--port", str(self._port), "--grpc-port"]
        log = log_folder / "router.log"
        self.router = ServiceProcess(
            "router", "services.router", [*flags, str(self._grpc_port)], log
        )
        self._markers = {name: 10 + place for place, name in enumerate(plan.folders)}
        self._random = random.Random(plan.seed)
        self._workers: dict[str, list[ChurnWorker]] = {name: [] for name in plan.folders}
        #: By model: until when it may refuse requests.
        self._excused_s: dict[str, float] = dict.fromkeys(plan.folders, 0.0)
        self._number = 0
        self.result = ChurnResult()

    async def run(self) -> ChurnResult:
        """Run the plan; return what was seen.

        Raises:
            UnavailableError: the router did not start.
        """
        self.router.start()
        channels = ChannelPool()
        directory = RemoteDirectory(channels.get(f"127.0.0.1:{self._grpc_port}"))
        url = f"http://127.0.0.1:{self._port}"
        limits = httpx.Limits(max_connections=self._plan.clients + 4)
        try:
            async with httpx.AsyncClient(
                base_url=url, trust_env=False, timeout=30, limits=limits
            ) as http:
                await self._start(directory, http)
                async with asyncio.TaskGroup() as tasks:
                    end_s = time.monotonic() + self._plan.duration_s
                    for _ in range(self._plan.clients):
                        tasks.create_task(self._ask_until(http, end_s))
                    tasks.create_task(self._change_until(directory, end_s))
                    tasks.create_task(self._sample_until(end_s))
            self.router.require_running()
        finally:
            for worker in [w for ws in self._workers.values() for w in ws]:
                self._count(worker)
                await worker.die()
            await channels.close()
            await asyncio.to_thread(stop_all, [self.router], grace_s=5.0)
        return self.result

    async def _start(self, directory: RemoteDirectory, http: httpx.AsyncClient) -> None:
        async with asyncio.timeout(READY_S):
            while not await _answers(http, "/live"):
                self.router.require_running()
                await asyncio.sleep(0.1)
            for model in self._workers:
                for _ in range(self._plan.workers_each):
                    await self._join(directory, model)
            for model in self._workers:
                while (await self._send(http, model)).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    async def _ask_until(self, http: httpx.AsyncClient, end_s: float) -> None:
        models = list(self._workers)
        while time.monotonic() < end_s:
            model = self._random.choice(models)
            began_s = time.monotonic()
            try:
                reply = await self._send(http, model)
            except httpx.HTTPError as error:
                self.result.faults.append(f"{model}: {error!r}")
                continue
            if reply.status_code == 200:
                self._check(model, reply.json())
            elif began_s < self._may_refuse_until_s(model):
                self.result.refused[model] += 1
                await asyncio.sleep(0.05)
            else:
                self.result.faults.append(f"{model}: {reply.status_code} {reply.text[:300]}")

    def _may_refuse_until_s(self, model: str) -> float:
        late_s = max((worker.late_s for worker in self._workers[model]), default=0.0)
        return max(self._excused_s[model], late_s + RETURN_S)

    async def _send(self, http: httpx.AsyncClient, model: str) -> httpx.Response:
        body = {
            "model": model,
            "prompt": prompt_of(self._markers[model]),
            "max_tokens": NUM_TOKENS,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return await http.post("/v1/completions", json=body)

    def _check(self, model: str, answer: Any) -> None:
        token_ids = answer["choices"][0]["token_ids"]
        if answer["model"] == model and token_ids == [self._markers[model]] * NUM_TOKENS:
            self.result.answered[model] += 1
        else:
            self.result.faults.append(f"{model}: {answer['model']}: {token_ids}")

    async def _change_until(self, directory: RemoteDirectory, end_s: float) -> None:
        async with asyncio.TaskGroup() as looks:
            while time.monotonic() < end_s:
                await asyncio.sleep(self._random.expovariate(1 / self._plan.change_s))
                model = self._random.choice(list(self._workers))
                if self._random.random() < self._plan.outage_share:
                    await self._outage(directory, model, looks)
                    continue
                # The first worker stays: the model has one at any time, besides outages.
                if len(self._workers[model]) > 1:
                    worker = self._workers[model].pop()
                    await self._part_with(directory, worker, looks)
                await self._join(directory, model)

    async def _outage(
        self, directory: RemoteDirectory, model: str, looks: asyncio.TaskGroup
    ) -> None:
        self.result.num_outages += 1
        self._excused_s[model] = float("inf")
        while self._workers[model]:
            await self._part_with(directory, self._workers[model].pop(), looks)
        await asyncio.sleep(self._plan.outage_s)
        for _ in range(self._plan.workers_each):
            await self._join(directory, model)
        self._excused_s[model] = time.monotonic() + RETURN_S

    async def _join(self, directory: RemoteDirectory, model: str) -> None:
        self._number += 1
        name = f"{model}-{self._number}"
        # Methods that nothing calls here answer UNIMPLEMENTED.
        worker = ChurnWorker(name, model, self._markers[model])  # type: ignore[abstract]
        await worker.join(directory)
        self._workers[model].append(worker)
        self.result.num_joined += 1

    async def _part_with(
        self, directory: RemoteDirectory, worker: ChurnWorker, looks: asyncio.TaskGroup
    ) -> None:
        if self._random.random() < 0.5:
            await worker.leave(directory)
            self.result.num_left += 1
            wait_s = 0.0
        else:
            await worker.die()
            self.result.num_died += 1
            wait_s = STALE_S
        self._count(worker)
        looks.create_task(self._look(directory, worker, wait_s))

    async def _look(self, directory: RemoteDirectory, worker: ChurnWorker, wait_s: float) -> None:
        """Check that the directory has forgotten a worker and its blocks."""
        await asyncio.sleep(wait_s)
        try:
            present = {event.record.worker for event in await directory.workers()}
            holders = await directory.lookup(hashes_of(self._markers[worker.model]))
        except BatonError as error:
            self.result.faults.append(f"the directory: {error}")
            return
        if worker.worker in present or worker.worker in holders:
            self.result.stale.append(str(worker.worker))
        others = {name.rpartition("-")[0] for name in (each.name for each in holders)}
        if others - {worker.model}:
            self.result.faults.append(f"blocks of {worker.model} are held by {others}")

    def _count(self, worker: ChurnWorker) -> None:
        self.result.num_wrong += worker.num_wrong

    async def _sample_until(self, end_s: float) -> None:
        if self.router.pid is None:
            raise UnavailableError("the router is not running")
        process = psutil.Process(self.router.pid)
        while time.monotonic() < end_s:
            self.result.rss_mib.append(process.memory_info().rss / 2**20)
            await asyncio.sleep(SAMPLE_S)


async def _answers(http: httpx.AsyncClient, path: str) -> bool:
    try:
        return (await http.get(path)).status_code == 200
    except httpx.HTTPError:
        return False
