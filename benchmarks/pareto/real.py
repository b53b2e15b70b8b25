"""Measures cells on real workers, until all are there or the time is over."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec
import uvloop

from benchmarks.pareto.bars import MODES
from benchmarks.pareto.choice import BLOCK_SIZE, Case, work_ms
from benchmarks.pareto.cluster import ParetoCluster
from benchmarks.pareto.drive import answers_of, ask_in_time, find_capacity
from benchmarks.pareto.measures import columns, goodput
from benchmarks.pareto.prompts import due, make_samples
from benchmarks.pareto.results import Places, Row
from benchmarks.pareto.systems import AskedMode, AskedPeer, missing_peers, start_peer
from benchmarks.peers.machine.background import ThisProcess, machine_busy_s
from benchmarks.peers.machine.description import measured_cores
from benchmarks.peers.models import FIRST_WORD, MODELS, model_folder
from benchmarks.routing.workloads import arrivals
from services.router.routing.places.mode import PlacementMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.load.runner import Run
    from benchmarks.load.workload.sample import Sample
    from benchmarks.pareto.choice import Choice
    from benchmarks.pareto.results import Answer, Results
    from benchmarks.pareto.systems import Asked
    from benchmarks.routing.traces import Arrival

    Note = Callable[[str], None]

#: Each router's first requests: it learns the workers' speed. They are not measured.
WARM_UP = ("shift", "bursts")
WARM_UP_S = 3.0
WARM_UP_MS = 500.0
#: More than the capacity, for the number of requests of a closed loop.
MOST_MS = 5000.0
CAPACITY_SEED = 1000
#: Cores that others may keep busy. A cell with more is measured again, up to so many times in all;
#: the last one counts, whatever it is.
MOST_OTHERS, TRIES = 0.25, 3
#: Seconds that a cell takes beyond its span.
CELL_RESERVE_S = 8.0


class RealRun:
    """One part of a run: starts what is needed, measures what is missing, ends it all."""

    def __init__(
        self,
        choice: Choice,
        results: Results,
        path: Path,
        *,
        model: str,
        systems: Sequence[str],
        end_s: float,
        note: Note,
    ) -> None:
        """Make a run. `end_s`: of `time.monotonic`; no cell begins that would end later."""
        self._choice = choice
        self._results = results
        self._path = path
        self._model = model
        self._systems = systems
        self._end_s = end_s
        self._note = note
        self._asked: dict[str, Asked] = {}

    def run(self) -> bool:
        """Measure; return whether all is there.

        Raises:
            BatonError: a process ended or did not start; what was measured is in the file.
        """
        peers = tuple(name for name in self._systems if name not in MODES)
        self._results.missing = missing_peers(peers)
        systems = [name for name in self._systems if name not in self._results.missing]
        turns = self._results.left(self._choice.turns(systems))
        if not turns:
            return True
        with ExitStack() as stack:
            self._start(stack, [name for name in systems if name not in MODES])
            return self._capacities(turns) and self._cells(turns)

    def _start(self, stack: ExitStack, peers: Sequence[str]) -> None:
        folder, cores = self._path.parent / "logs", measured_cores()
        model = model_folder(self._model)
        self._note("starting the cluster")
        cluster = stack.enter_context(ParetoCluster(model, folder, cores))
        cluster.wait_ready()
        self._asked |= {mode: AskedMode(cluster, mode) for mode in MODES}
        for name in peers:
            self._note(f"starting {name}")
            self._pause_but(None)
            server = start_peer(name, model, folder, cores)
            stack.callback(server.close)
            server.wait_ready()
            self._asked[name] = AskedPeer(name, server)
        for name in self._asked:
            self._note(f"warming up {name}")
            for workload in WARM_UP:
                case = Case(workload=workload, load=0.0, repetition=-1)
                coming = self._arrivals(case, WARM_UP_MS, WARM_UP_S)
                salt = f"warm-up {workload} {name}"
                self._ask(name, self._samples(coming, salt), coming)

    def _capacities(self, turns: Sequence[tuple[Case, str]]) -> bool:
        for workload in dict.fromkeys(case.workload for case, _ in turns):
            if workload in self._results.capacity_ms:
                continue
            if self._is_over(self._choice.capacity_s):
                return False
            self._note(f"capacity for {workload}")
            case = Case(workload=workload, load=1.0, repetition=CAPACITY_SEED)
            coming = self._arrivals(case, MOST_MS, self._choice.capacity_s)
            samples = self._samples(coming, f"capacity {workload}")
            asked = self._wake(PlacementMode.AGGREGATED.value)
            before, used_s = time.monotonic(), _cpu_s(asked)
            found = uvloop.run(find_capacity(asked.url, samples, self._choice.capacity_s))
            cores = _less_cpu(_cpu_s(asked), used_s, time.monotonic() - before)
            self._note(f"{workload}: {found:.0f} a second, cores {cores}")
            self._results.capacity_ms[workload] = found
            self._results.save(self._path)
        return True

    def _cells(self, turns: Sequence[tuple[Case, str]]) -> bool:
        for number, (case, system) in enumerate(turns, 1):
            if self._is_over(self._choice.span_s):
                return False
            capacity = self._results.capacity_ms[case.workload]
            coming = self._arrivals(case, capacity * case.load, self._choice.span_s)
            samples = self._samples(coming, f"{case}")
            what = f"{number}/{len(turns)} {case.workload} at {case.load:g}, {system}"
            self._note(f"{what}: {len(samples)} requests")
            row = self._measure(case, system, samples, coming)
            for _ in range(TRIES - 1):
                if row.others <= MOST_OTHERS or self._is_over(self._choice.span_s):
                    break
                self._note(f"{what}: others kept {row.others:.2f} cores busy, once more")
                self._results.disturbed.append(row)
                row = self._measure(case, system, samples, coming)
            self._results.rows.append(row)
            self._results.save(self._path)
        return True

    def _measure(
        self, case: Case, system: str, samples: Sequence[Sample], coming: Sequence[Arrival]
    ) -> Row:
        asked = self._wake(system)
        placed, used_s = asked.places(), _cpu_s(asked)
        started_s = time.monotonic()
        run = self._ask_awake(asked, samples, coming)
        cores = _less_cpu(_cpu_s(asked), used_s, time.monotonic() - started_s)
        row = self._row(case, system, run, answers_of(run, samples, due(coming)))
        return msgspec.structs.replace(
            row,
            offered=sum(map(work_ms, coming))
            / self._choice.span_s
            / self._results.capacity_ms[case.workload],
            places=_less(asked.places(), placed),
            cores=cores,
        )

    def _row(self, case: Case, system: str, run: Run, answers: list[Answer]) -> Row:
        done = [answer for answer in answers if not answer.error]
        gaps_ms = [gap * 1000 for o in run.outcomes if o.success for gap in o.itls_s]
        ttft_ms = [answer.ttft_ms for answer in done]
        itl_ms = [answer.itl_ms for answer in done]
        return Row(
            workload=case.workload,
            load=case.load,
            system=system,
            repetition=case.repetition,
            num_requests=len(answers),
            num_failed=len(answers) - len(done),
            offered=0.0,
            **columns(ttft_ms, gaps_ms),
            goodput=goodput(ttft_ms, itl_ms, len(answers), self._results.slo),
            tokens_per_s=sum(answer.num_output for answer in done) / run.duration_s,
            took_s=run.duration_s,
            max_lag_ms=max((outcome.lag_s * 1000 for outcome in run.outcomes), default=0.0),
            answers=answers,
        )

    def _arrivals(self, case: Case, rate_ms: float, span_s: float) -> list[Arrival]:
        return arrivals(
            case.workload,
            rate_ms=rate_ms,
            span_s=span_s,
            work_ms=work_ms,
            seed=case.seed,
            scale=self._choice.scale(case.workload),
        )

    def _samples(self, coming: Sequence[Arrival], salt: str) -> list[Sample]:
        words = range(FIRST_WORD, MODELS[self._model].vocab_size)
        return make_samples(coming, salt=salt, block_size=BLOCK_SIZE, words=words)

    def _ask(self, system: str, samples: Sequence[Sample], coming: Sequence[Arrival]) -> Run:
        return self._ask_awake(self._wake(system), samples, coming)

    def _ask_awake(self, asked: Asked, samples: Sequence[Sample], coming: Sequence[Arrival]) -> Run:
        return uvloop.run(ask_in_time(asked.url, samples, due(coming), lambda: None))

    def _wake(self, system: str) -> Asked:
        """Stop the processes of all others, and have the system begin anew."""
        self._pause_but(system)
        asked = self._asked[system]
        asked.prepare()
        return asked

    def _pause_but(self, system: str | None) -> None:
        mine = self._asked[system].trees() if system else {}
        for asked in self._asked.values():
            for name, tree in asked.trees().items():
                if name not in mine:
                    tree.pause()
        for tree in mine.values():
            tree.resume()

    def _is_over(self, seconds: float) -> bool:
        return time.monotonic() + seconds + CELL_RESERVE_S > self._end_s


def _cpu_s(asked: Asked) -> dict[str, float]:
    """Return the processor time of the system's processes, of this one, the client, and of all
    others of the machine.
    """
    found = {name: tree.cpu_s() for name, tree in asked.trees().items()}
    found["client"] = ThisProcess().cpu_s()
    return found | {"others": machine_busy_s() - sum(found.values())}


def _less_cpu(now: dict[str, float], before: dict[str, float], took_s: float) -> dict[str, float]:
    """Return the cores that each kept busy in between."""
    return {name: round((now[name] - before[name]) / took_s, 3) for name in now}


def _less(now: Places | None, before: Places | None) -> Places | None:
    if now is None or before is None:
        return None
    return Places(
        here=now.here - before.here,
        handed_over=now.handed_over - before.handed_over,
        split=now.split - before.split,
    )
