"""The faults and the states, and which of their cells are run."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from benchmarks.faults.kinds.cores import HolderLost
from benchmarks.faults.kinds.crowds import ClientGone, OutOfBlocks, SlowClient
from benchmarks.faults.kinds.drains import Drain, Roll
from benchmarks.faults.kinds.hosts import ClockJump, FullDisk, LeasesEnd
from benchmarks.faults.kinds.partitions import Partition
from benchmarks.faults.kinds.planners import PlannerLost
from benchmarks.faults.kinds.processes import Kill, Restart, Stop
from benchmarks.faults.kinds.ranks import FollowerFault, RankPartition
from benchmarks.faults.kinds.roles import RoleChange
from benchmarks.faults.kinds.upgrades import Upgrade
from benchmarks.faults.kinds.wires import Wire
from benchmarks.faults.states import State
from benchmarks.faults.system.cluster import REDIS
from benchmarks.faults.wire.connection import Channel
from benchmarks.faults.wire.damage import Damage

if TYPE_CHECKING:
    from benchmarks.faults.kinds.base import Fault

ROLES = ("prefill", "decode", "router", REDIS)
SIGNALS = (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP))
STATES = tuple(state for state in State if state is not State.DONE)
DAMAGES = tuple(damage for damage in Damage if damage is not Damage.LATE)
#: What TCP lets happen to bytes in the clear; against the others nothing helps but TLS.
TCP_DAMAGES = (Damage.DELAYED, Damage.DROPPED, Damage.TRUNCATED)

FAMILIES: dict[str, tuple[Fault, ...]] = {
    "a process dies": tuple(Kill(role) for role in ROLES),
    "a process stops and goes on": tuple(Stop(role) for role in ROLES),
    "a rank of a worker dies, stops or is cut off": (
        *(FollowerFault(word, number, role) for word, number in SIGNALS for role in ROLES[:2]),
        *(RankPartition(role) for role in ROLES[:2]),
    ),
    "a process is restarted at its port": tuple(Restart(role) for role in ROLES),
    "a process drains": tuple(Drain(role) for role in ROLES[:3]),
    "all of a kind are replaced": tuple(Roll(role) for role in ROLES[:3]),
    "roles change": (RoleChange(),),
    "the planner dies, or stops, while it acts": tuple(
        PlannerLost(word, number) for word, number in SIGNALS
    ),
    "a worker with cores of others dies, or stops": tuple(
        HolderLost(word, number) for word, number in SIGNALS
    ),
    "a partition": (
        Partition("prefill", "decode"),
        Partition("decode", REDIS),
        Partition("router", "decode"),
    ),
    "pieces of KV on the wire": (
        *(Wire(Channel.ZMQ, damage) for damage in DAMAGES),
        Wire(Channel.ZMQ, Damage.LATE),
    ),
    "packets of gRPC": tuple(Wire(Channel.GRPC, damage) for damage in TCP_DAMAGES),
    "crowds and clients": (OutOfBlocks(), SlowClient(), ClientGone()),
    "the host": (FullDisk(), ClockJump("prefill"), ClockJump("decode"), LeasesEnd()),
    "a rolling upgrade": (
        Upgrade("prefill", "block size"),
        Upgrade("prefill", "protocol"),
        Upgrade("decode", "block size"),
        Upgrade("decode", "protocol"),
    ),
    "packets of gRPC under TLS": tuple(
        Wire(Channel.GRPC, damage, encrypted=True) for damage in DAMAGES
    ),
}
FAULTS = {fault.name: fault for family in FAMILIES.values() for fault in family}

#: The most telling cells, for a suite that has minutes.
CI_CELLS: tuple[tuple[str, State], ...] = (
    ("client gone", State.STREAMING),
    ("client gone", State.TRANSFERRING),
    ("zmq corrupted", State.TRANSFERRING),
    ("zmq late", State.TRANSFERRING),
    ("zmq dropped", State.TRANSFERRING),
    ("out of blocks", State.QUEUED),
    ("kill redis", State.STREAMING),
    ("kill prefill", State.TRANSFERRING),
    ("kill prefill", State.PREFILLING),
    ("kill router", State.STREAMING),
    ("drain decode", State.STREAMING),
    ("role change", State.TRANSFERRING),
    ("role change", State.STREAMING),
    ("kill core holder", State.PREFILLING),
    ("kill decode", State.TOKENISED),
    ("kill decode", State.STREAMING),
)


def select(
    faults: list[str] | None, states: list[str] | None, *, subset: str | None
) -> list[tuple[Fault, State]]:
    """Cells by names, or parts of names, in the order of the table.

    Raises:
        ValueError: a name fits nothing.
    """
    if subset == "ci":
        return [(FAULTS[name], state) for name, state in CI_CELLS]
    chosen = [
        fault for name, fault in FAULTS.items() if not faults or any(f in name for f in faults)
    ]
    wanted = [state for state in STATES if not states or any(s in state.value for s in states)]
    if not chosen or not wanted or subset:
        raise ValueError(f"nothing fits {faults}, {states}, {subset}")
    return [
        (fault, state)
        for fault in chosen
        for state in wanted
        if not (fault.encrypted and state.seen_on_wire)
    ]
