"""A worker is lost in the middle of a step that it computes with cores of others."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.faults.kinds.base import Fault, Scene
from benchmarks.faults.kinds.processes import Stop
from benchmarks.faults.system.cluster import WORKERS
from benchmarks.faults.system.cores import CoresFile, path_of, place_of
from kernels.native.structures import SpunTask
from shared.model.native.core_lease import CoreLease
from shared.model.native.threads import LibraryThreads, ThreadPlan

if TYPE_CHECKING:
    from benchmarks.faults.system.cores import Claim

#: For a worker to borrow a core: all of them begin steps all the time.
HOLDS_S = 5.0
#: The victim's workers are waited for so long, then any will do.
_OWN_S = 0.3
#: From the kill on; a member that wants a core looks every 0.1 s whether its user lives.
BACK_S = 1.0
#: Of one that only stops, its owner alone has it back, with its next step.
OWNED_S = 8.0
#: Requests besides, so that every worker has steps to do.
NUM_STIRRED = 8
_POLL_S = 0.002
_WANT_S = 0.02
_NUM_TASKS = 16
_TASK_NS = 1000


class HolderLost(Fault):
    """A signal to a worker whose step has a core of another one: the victim's, if one of them has.

    It is stopped first, to see that it still has the core: then it is in the middle of a step.
    """

    is_crash = True
    least_s = Stop("decode").least_s

    def __init__(self, word: str, number: signal.Signals) -> None:
        self.name = f"{word} core holder"
        self._number = number

    def impossible(self, scene: Scene) -> str | None:
        """See `Fault`."""
        if len(os.sched_getaffinity(0)) < 2:
            return "needs two cores: with one, none is lent"
        unshared = [n for n in WORKERS if path_of(scene.cluster.processes[n].pid) is None]
        return f"needs cores that are lent: {unshared[0]} shares none" if unshared else None

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        path = path_of(scene.cluster.processes[WORKERS[0]].pid)
        assert path is not None
        caught = await self._catch(scene, path)
        if caught is None:
            scene.problems.append(f"no worker borrowed a core within {HOLDS_S:g} s")
            return
        scene.target, core, claim = caught
        scene.since_s = time.monotonic()
        if self._number is signal.SIGKILL:
            scene.cluster.processes[scene.target].kill()
            scene.start(_wanted_back(scene, path, claim))
        else:
            scene.start(_owned(scene, path, core, claim))

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        await scene.finish()
        if scene.since_s is None:
            return
        if self._number is signal.SIGKILL:
            scene.cluster.restart(scene.target)
            return
        # The others had to get over it, as over every worker that stops.
        await asyncio.sleep(scene.since_s + self.least_s - time.monotonic())
        scene.cluster.signal(scene.target, signal.SIGCONT)

    async def _catch(self, scene: Scene, path: Path) -> tuple[str, int, Claim] | None:
        """Stop a worker that has a borrowed core; return its name, the core and the claim."""
        processes = scene.cluster.processes
        places = {place_of(processes[name].pid, path): name for name in WORKERS}
        own = {scene.choose("prefill"), scene.choose("decode")}
        began_s = time.monotonic()
        with closing(CoresFile(path)) as file:
            while (waited_s := time.monotonic() - began_s) < HOLDS_S:
                for core, claim in enumerate(file.claims()):
                    name = places.get(claim.user, "")
                    if claim.is_borrowed and (name in own or (name and waited_s > _OWN_S)):
                        processes[name].send(signal.SIGSTOP)
                        await _stopped(processes[name].pid)
                        if file.claim(core) == claim:
                            return name, core, claim
                        processes[name].send(signal.SIGCONT)
                await asyncio.sleep(_POLL_S)
        return None


async def _stopped(pid: int) -> None:
    """Wait until the signal has reached all threads of a process."""
    while not _has_stopped(pid):
        if not psutil.pid_exists(pid):
            break
        await asyncio.sleep(0)


def _has_stopped(pid: int) -> bool:
    # The state is behind the name, which may have anything in it.
    stats = [path.read_text(encoding="utf-8") for path in Path("/proc").glob(f"{pid}/task/*/stat")]
    return all(stat.rpartition(")")[2].split()[0] in "TZ" for stat in stats)


async def _wanted_back(scene: Scene, path: Path, claim: Claim) -> None:
    """The members that want the cores of the dead one have them, and no core is lost."""
    began_s = time.monotonic()
    with closing(CoresFile(path)) as file:
        num_cores = len(file.claims())
        with closing(CoreLease(path, 1, 1)) as lease:
            threads = LibraryThreads(ThreadPlan(1, num_spare=num_cores))
            threads.share(lease)
            threads.take_cores()
            tasks = (SpunTask * _NUM_TASKS)()
            while left := [one for one in file.claims() if one[1:] == claim[1:]]:
                threads.library.baton_pool_spin(threads.pool, _NUM_TASKS, _TASK_NS, tasks)
                if time.monotonic() - began_s > BACK_S:
                    scene.problems.append(f"{scene.target} is dead and has cores: {left}")
                    break
                await asyncio.sleep(_WANT_S)
            threads.lend_cores()
            del threads
        if len(file.claims()) != num_cores:
            scene.problems.append(f"there were {num_cores} cores, then {len(file.claims())}")


async def _owned(scene: Scene, path: Path, core: int, claim: Claim) -> None:
    """The owner has its core again with its next step."""
    began_s = time.monotonic()
    processes = scene.cluster.processes
    [owner] = [name for name in WORKERS if place_of(processes[name].pid, path) == claim.owner]
    num_done = await _num_done(scene, owner)
    for record in scene.load.running[:NUM_STIRRED]:
        scene.load.ask(record.ask)
    with closing(CoresFile(path)) as file:
        while file.claim(core) == claim:
            if time.monotonic() - began_s > OWNED_S:
                if await _num_done(scene, owner) != num_done:
                    scene.problems.append(f"{owner} works without its core {core}: {claim}")
                break
            await asyncio.sleep(_WANT_S)


async def _num_done(scene: Scene, name: str) -> int:
    """Return a number that grows with each step of a worker."""
    return sum((await scene.cluster.load(name)).counters.values())
