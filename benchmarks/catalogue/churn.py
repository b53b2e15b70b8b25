"""Workers and adapters of several models come and go under load: what must hold meanwhile."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from benchmarks.catalogue.adapters import AdapterBook, digest_of, token_of
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
#: Of requests: those for an adapter. Of changes of adapters: those that take the name away first.
ADAPTER_SHARE, UNLOAD_SHARE = 0.5, 0.3
#: An order about an adapter succeeds within this time, besides outages: workers come and go
#: meanwhile, and an order is on all of them or on none.
ORDER_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnPlan:
    """What happens, and how often."""

    #: By model: its folder.
    folders: Mapping[str, Path]
    workers_each: int = 2
    clients: int = 6
    #: Of all models together.
    num_adapters: int = 0
    #: Mean time between two changes [s], of workers and of adapters.
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
    #: By kind of order: those about adapters that succeeded.
    adapter_orders: Counter[str] = field(default_factory=Counter)
    num_adapter_answers: int = 0
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
        names = list(plan.folders)
        self._adapters = [
            AdapterBook(names[place % len(names)], f"a{place}")
            for place in range(plan.num_adapters)
        ]
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
                    if self._adapters:
                        tasks.create_task(self._order_until(http, end_s))
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
                while (await self._send(http, model)).status_code != 200:  # noqa: ASYNC110 another process
                    await asyncio.sleep(0.1)

    async def _ask_until(self, http: httpx.AsyncClient, end_s: float) -> None:
        models = list(self._workers)
        while time.monotonic() < end_s:
            adapter = None
            if self._adapters and self._random.random() < ADAPTER_SHARE:
                adapter = self._random.choice(self._adapters)
            model = self._random.choice(models) if adapter is None else adapter.model
            began_s = time.monotonic()
            try:
                reply = await self._send(http, model, adapter)
            except httpx.HTTPError as error:
                self.result.faults.append(f"{model}: {error!r}")
                continue
            if reply.status_code == 200:
                self._check(model, reply.json(), adapter, began_s)
            elif adapter is not None and reply.status_code == 404:
                if None not in adapter.allowed_since(began_s):
                    self.result.faults.append(f"{adapter.name}: {reply.text[:300]}")
                await asyncio.sleep(0.05)
            elif began_s < self._may_refuse_until_s(model):
                self.result.refused[model] += 1
                await asyncio.sleep(0.05)
            else:
                self.result.faults.append(f"{model}: {reply.status_code} {reply.text[:300]}")

    def _may_refuse_until_s(self, model: str) -> float:
        late_s = max((worker.late_s for worker in self._workers[model]), default=0.0)
        return max(self._excused_s[model], late_s + RETURN_S)

    async def _send(
        self, http: httpx.AsyncClient, model: str, adapter: AdapterBook | None = None
    ) -> httpx.Response:
        body = {
            "model": model if adapter is None else adapter.name,
            "prompt": prompt_of(self._markers[model]),
            "max_tokens": NUM_TOKENS,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return await http.post("/v1/completions", json=body)

    def _check(self, model: str, answer: Any, adapter: AdapterBook | None, began_s: float) -> None:
        name, allowed = model, {self._markers[model]}
        if adapter is not None:
            contents = adapter.allowed_since(began_s)
            name, allowed = adapter.name, {token_of(one) for one in contents if one is not None}
        token_ids = answer["choices"][0]["token_ids"]
        is_one = len(token_ids) == NUM_TOKENS and len(set(token_ids)) == 1
        if answer["model"] == name and is_one and token_ids[0] in allowed:
            self.result.answered[model] += 1
            self.result.num_adapter_answers += adapter is not None
        else:
            self.result.faults.append(f"{name}: {answer['model']}: {token_ids} of {allowed}")

    async def _order_until(self, http: httpx.AsyncClient, end_s: float) -> None:
        """Load, replace and unload adapters. One order at a time, as operators give them."""
        for adapter in self._adapters:
            await self._load(http, adapter)
        while time.monotonic() < end_s:
            await asyncio.sleep(self._random.expovariate(1 / self._plan.change_s))
            adapter = self._random.choice(self._adapters)
            if self._random.random() < UNLOAD_SHARE:
                await self._unload(http, adapter)
            adapter.version += 1
            await self._load(http, adapter)

    async def _load(self, http: httpx.AsyncClient, adapter: AdapterBook) -> None:
        """Load the present version; again until all workers have it."""
        digest = digest_of(adapter.path)
        adapter.may_become(digest)
        body = {"lora_name": adapter.name, "lora_path": adapter.path, "load_inplace": True}
        await self._order(http, adapter, "load", body)
        adapter.is_now(digest)
        if math.isinf(self._excused_s[adapter.model]):
            adapter.may_become(None)  # the last of those workers is leaving

    async def _unload(self, http: httpx.AsyncClient, adapter: AdapterBook) -> None:
        adapter.may_become(None)
        await self._order(http, adapter, "unload", {"lora_name": adapter.name})
        adapter.is_now(None)

    async def _order(
        self, http: httpx.AsyncClient, adapter: AdapterBook, verb: str, body: dict[str, Any]
    ) -> None:
        deadline_s = time.monotonic() + self._plan.outage_s + ORDER_S
        while True:
            reply = await http.post(
                f"/v1/{verb}_lora_adapter", params={"model": adapter.model}, json=body
            )
            if reply.status_code == 200:
                self.result.adapter_orders[verb] += 1
                return
            if verb == "unload" and reply.status_code == 404:
                return  # all workers that had it have left
            if time.monotonic() > deadline_s:
                self.result.faults.append(f"{verb} {adapter.name}: {reply.text[:300]}")
                return
            await asyncio.sleep(0.2)

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
        for adapter in self._adapters:
            if adapter.model == model:
                # Names end with the last worker that has them, until they are ordered again.
                adapter.may_become(None)
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
        worker = ChurnWorker(name, model, self._markers[model])  # type: ignore[abstract]  # see above
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
