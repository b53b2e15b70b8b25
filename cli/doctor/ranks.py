"""Findings about the ranks of a worker, on this machine or on several hosts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli.doctor.finding import fail, ok, warn
from shared.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli.doctor.finding import Finding
    from shared.ranks.measure import SumTime

#: A step of a small model has dozens of sums, and such a model's step takes some milliseconds.
_SLOW_US = 100
#: Between hosts: 64 sums of a step of 32 layers take as long as the step of a model of some GB.
_SLOW_HOSTS_US = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks that are asked about. Names as in `RankSettings`."""

    tensor_parallel_size: int = 1
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29501
    #: File of the token that the hosts show each other.
    cluster_token: Path | None = None


def check_ranks(asked: Ranks) -> Iterator[Finding]:
    """Start the ranks of this host, and time their sums; they have ended afterwards.

    A host that is not node 0 waits for that, and has ranks until it has measured.
    """
    size = asked.tensor_parallel_size
    if size == 1:
        yield ok("ranks", "not asked for: --tensor-parallel-size 2")
        return
    num_cores = len(os.sched_getaffinity(0))
    num_here = size // asked.nnodes
    if num_cores < num_here:
        text = f"{num_here} ranks on {num_cores} cores"
        yield warn("ranks", text, "take a rank per core at most: others wait while one computes")
    try:
        found = _measure(asked)
    except BatonError as error:
        yield fail("ranks", str(error), "see the lines of that rank above")
        return
    if found is None:
        yield ok("ranks", f"node {asked.node_rank} had its ranks: node 0 reports what was measured")
        return
    small, large = found
    small_us = small.seconds * 1e6
    where = "" if asked.nnodes == 1 else f" on {asked.nnodes} hosts"
    text = (
        f"{size} reach each other{where}: a sum of {small.num_bytes >> 10} KiB takes "
        f"{small_us:.0f} us, of {large.num_bytes >> 20} MiB {large.bytes_per_s / 1e9:.1f} GB/s"
    )
    if asked.nnodes == 1 and small_us > _SLOW_US:
        yield warn("ranks", text, "other work is on these cores, or they are on different sockets")
    elif small_us > _SLOW_HOSTS_US:
        advice = (
            f"each layer has two sums: {small_us * 64 / 1e3:.0f} ms for a token of a model of 32 "
            "layers; --pipeline-parallel-size sends less"
        )
        yield warn("ranks", text, advice)
    else:
        yield ok("ranks", text)


def _measure(asked: Ranks) -> list[SumTime] | None:
    """Return the times of small and large sums; None: another host has them.

    Raises:
        BatonError: a rank, or another host, cannot be reached.
    """
    # Ranks import PyTorch, which takes seconds.
    from shared.engine.ranks.handshake import OwnNode
    from shared.engine.ranks.leader import RankLeader
    from shared.engine.ranks.node import Node
    from shared.engine.settings.ranks import RankSettings
    from shared.rpc.auth import ClusterToken

    settings = RankSettings(
        tensor_parallel_size=asked.tensor_parallel_size,
        nnodes=asked.nnodes,
        node_rank=asked.node_rank,
        master_addr=asked.master_addr,
        master_port=asked.master_port,
    )
    token = None if asked.cluster_token is None else ClusterToken(asked.cluster_token)
    own = OwnNode(token=token)
    if settings.node_rank:
        Node(settings, own).follow()
        return None
    leader = RankLeader(settings, own=own)
    try:
        return leader.measure_sums()
    finally:
        leader.close()
