"""Two ranks of one thread on two cores: sums by size beside gloo, and plans to a follower.

What the machine can do at best stands beside it: copies of 4 MiB on one core and from one core to
the other, and the way of one cache line there and back.

    python -m benchmarks.ranks
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch._C._distributed_c10d import FileStore

from kernels.native.build import FLAGS, find_compiler
from shared.engine.step.followers.plan_codec import decode_plan, encode_plan
from shared.engine.step.plan import StepPlan
from shared.ranks.measure import SumTime, measure_sums
from shared.ranks.membership import SPIN_S
from shared.ranks.plan_ring import PlanRingReceiver, PlanRingSender, ring_file
from shared.ranks.shared_memory import SharedMemoryCollective, collective_file
from shared.ranks.torch_group import gloo_collective

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.ranks.base import Collective

SIZES = (256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
DTYPES = (torch.float32, torch.bfloat16)
NUM_SEQUENCES = 64
NUM_PLANS = 400
#: Between two plans; a follower spins for a shorter time than the second.
GAPS_S = (100e-6, 3e-3)
_SIZE = 2

app = typer.Typer(add_completion=False)


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    cpus: Annotated[str, typer.Option(help="One for each rank, with a comma between.")] = "0,1",
) -> None:
    """Measure, and print tables."""
    if context.invoked_subcommand is None:
        _measure(cpus)


@app.command(hidden=True)
def follow(folder: str, collective_fd: int, ring_fd: int, cpu: int) -> None:
    """The second rank."""
    _stay_on(cpu)
    receiver = PlanRingReceiver(ring_fd, 1, _SIZE, spin_s=SPIN_S)
    received_s = []
    for _ in range(NUM_PLANS * len(GAPS_S)):
        receiver.receive()
        received_s.append(time.monotonic())
    print(json.dumps(received_s), flush=True)
    for join in _groups(1, collective_fd, folder):
        _sums(join)


def _measure(cpus: str) -> None:
    first, second = (int(cpu) for cpu in cpus.split(","))
    console = Console(width=110)
    console.print(_limits(first, second))
    collective, ring = collective_file(_SIZE), ring_file(_SIZE)
    with tempfile.TemporaryDirectory() as folder:
        fds = (collective.fd, ring.fd)
        command = [sys.executable, "-m", "benchmarks.ranks", "follow", folder, *map(str, fds)]
        follower = subprocess.Popen(
            [*command, str(second)], pass_fds=fds, stdout=subprocess.PIPE, text=True
        )
        try:
            _stay_on(first)
            sent_s = _send_plans(ring.fd)
            assert follower.stdout is not None
            console.print(_plan_table(sent_s, json.loads(follower.stdout.readline())))
            for join in _groups(0, collective.fd, folder):
                console.print(_sum_table(join))
            follower.wait(timeout=60)
        finally:
            follower.kill()
            follower.wait()


def _stay_on(cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    torch.set_num_threads(1)


def _groups(rank: int, fd: int, folder: str) -> list[Callable[[], Collective]]:
    """Return what joins each kind of group."""
    store = str(Path(folder) / "store")
    return [
        # Each has a core, though this process sees only its own.
        lambda: SharedMemoryCollective(fd, rank, _SIZE, spin_s=SPIN_S),
        lambda: gloo_collective(FileStore(store, _SIZE), rank, _SIZE, host="127.0.0.1"),
    ]


def _sums(join: Callable[[], Collective]) -> tuple[str, list[list[SumTime]]]:
    """Take part in the sums of a group; return its kind, and times by dtype."""
    group = join()
    times = [measure_sums(group, SIZES, dtype) for dtype in DTYPES]
    group.barrier()
    group.close()
    return type(group).__name__, times


def _send_plans(fd: int) -> list[float]:
    """Return when each was sent [s]."""
    sender = PlanRingSender(fd, _SIZE, spin_s=SPIN_S)
    data = encode_plan(_plan())
    sent_s = []
    for gap_s in GAPS_S:
        for _ in range(NUM_PLANS):
            sender.drain()
            until_s = time.monotonic() + gap_s
            while time.monotonic() < until_s:
                pass
            sent_s.append(time.monotonic())
            sender.send(data)
    sender.drain()
    return sent_s


def _plan() -> StepPlan:
    """Return the plan of a step in which every sequence decodes."""
    places = range(NUM_SEQUENCES)
    return StepPlan(
        rows=list(places),
        firsts=[900 + 7 * place for place in places],
        num_new_tokens=[1] * NUM_SEQUENCES,
        token_ids=[0] * NUM_SEQUENCES,
        fed=list(places),
        fed_rows=list(places),
        sampled=list(places),
    )


def _limits(first: int, second: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "limits")
        source = str(Path(__file__).parent / "limits.cpp")
        flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
        subprocess.run([find_compiler(), *flags, source, "-o", program], check=True)
        out = subprocess.run(
            [program, str(first), str(second)], check=True, capture_output=True, text=True
        ).stdout
    limits: dict[str, float] = json.loads(out)
    return limits


def _sum_table(join: Callable[[], Collective]) -> Table:
    name, by_dtype = _sums(join)
    table = Table("bytes", *map(str, DTYPES), title=f"all_reduce of two ranks, medians: {name}")
    for size, *times in zip(SIZES, *by_dtype, strict=True):
        table.add_row(
            str(size),
            *(f"{each.seconds * 1e6:.1f} µs, {each.bytes_per_s / 1e9:.2f} GB/s" for each in times),
        )
    return table


def _plan_table(sent_s: list[float], received_s: list[float]) -> Table:
    plan = _plan()
    data = encode_plan(plan)
    title = f"plans of {NUM_SEQUENCES} sequences that decode, {len(data)} bytes, medians"
    table = Table("what", "µs", title=title)
    for at, gap_s in enumerate(GAPS_S):
        part = slice(at * NUM_PLANS, (at + 1) * NUM_PLANS)
        ways = [there - here for here, there in zip(sent_s[part], received_s[part], strict=True)]
        table.add_row(
            f"from send to the follower, {gap_s * 1e3:g} ms apart", f"{_median(ways) * 1e6:.1f}"
        )
    table.add_row("encode_plan", f"{_median(_times(lambda: encode_plan(plan))) * 1e6:.1f}")
    table.add_row("decode_plan", f"{_median(_times(lambda: decode_plan(data))) * 1e6:.1f}")
    return table


def _times(work: Callable[[], Any]) -> list[float]:
    times = []
    for _ in range(500):
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return times


_median = statistics.median

if __name__ == "__main__":
    app()
