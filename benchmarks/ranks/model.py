"""What ranks gain on a machine, computed from how fast it reads, computes and adds up.

A step reads the weights and the keys and values of its sequences, and multiplies. Ranks divide all
of that and wait for two sums in each layer, and one of the embeddings:

    step(1) = (weights + sequences * context * kv) / bytes_per_s + 2 * sequences * numbers / flops
    step(N) = balance * step(1) / N + (2 * layers + 1) * (sum_s + sequences * hidden * e / sum_rate)

`balance` is what the rank with the most heads has, in shares of an equal part. Stages keep chunks
of prompts in flight:

    speed(N stages) = N * chunks / (chunks + N - 1), less one message per chunk and boundary

    python -m benchmarks.ranks.model
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

#: Of one number that is added up or passed on.
_ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a step of a model reads and multiplies."""

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    #: Of all weights that a token uses, as stored.
    weight_bytes: float
    #: Numbers in those weights.
    num_weights: float
    #: Of one token, in all layers.
    kv_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What one rank has to itself: a socket, a host or a device, or a core of a shared memory."""

    bytes_per_s: float
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How ranks add up: a sum of n bytes takes `sum_s` + n / `sum_rate`."""

    name: str
    sum_s: float
    sum_rate: float


def step_s(shape: Shape, node: Node, *, num_sequences: int, context: int) -> float:
    """Return the seconds of a step in which every sequence decodes, on one node."""
    num_bytes = shape.weight_bytes + num_sequences * context * shape.kv_bytes
    return num_bytes / node.bytes_per_s + 2 * num_sequences * shape.num_weights / node.flops


def divided_step_s(
    shape: Shape, node: Node, link: Link, *, num_ranks: int, num_sequences: int, context: int
) -> float:
    """Return the seconds of that step on ranks with a node each."""
    most_heads = -(-shape.num_heads // num_ranks)
    balance = most_heads * num_ranks / shape.num_heads
    whole_s = step_s(shape, node, num_sequences=num_sequences, context=context)
    sum_s = link.sum_s + num_sequences * shape.hidden * _ELEMENT_BYTES / link.sum_rate
    num_sums = 0 if num_ranks == 1 else 2 * shape.num_layers + 1
    return balance * whole_s / num_ranks + num_sums * sum_s


def interleaved_step_s(
    shape: Shape, node: Node, *, link_bytes_per_s: float, num_sequences: int, context: int
) -> float:
    """Return the seconds of that step in one process on two nodes whose memory takes turns.

    Each node's memory serves half of all bytes, and half of those go over the link to the other.
    """
    whole_s = step_s(shape, node, num_sequences=num_sequences, context=context)
    num_bytes = shape.weight_bytes + num_sequences * context * shape.kv_bytes
    return max(whole_s / 2, num_bytes / 4 / link_bytes_per_s)


def stage_speed(*, num_stages: int, num_chunks: int, chunk_s: float, message_s: float) -> float:
    """Return how many times as fast stages compute chunks of `chunk_s` each on one node."""
    turn_s = chunk_s / num_stages + message_s
    return num_chunks * chunk_s / ((num_chunks + num_stages - 1) * turn_s)


#: Two cores that read one memory are two nodes with half of what a process of two threads has.
#: Fitted to its steps with 1 and 16 sequences of *medium* (docs/log/ranks.md, 2026-11-27).
HERE = Node(bytes_per_s=16.9e9, flops=57e9)
#: Fitted to sums of bfloat16 and float32 of the same day.
SHARED_MEMORY = Link(name="shared memory", sum_s=5.0e-6, sum_rate=5.5e9)
GLOO = Link(name="gloo, loopback", sum_s=0.9e-3, sum_rate=0.35e9)

MEDIUM = Shape(
    name="medium, bf16", num_layers=24, hidden=896, num_heads=14,
    weight_bytes=0.78e9, num_weights=0.39e9, kv_bytes=24 * 2 * 2 * 64 * 2,
)  # fmt: skip
MEDIUM_INT4 = replace(MEDIUM, name="medium, int4", weight_bytes=0.26e9)
SEVEN = Shape(
    name="7 B, bf16", num_layers=32, hidden=4096, num_heads=32,
    weight_bytes=14e9, num_weights=7e9, kv_bytes=32 * 2 * 8 * 128 * 2,
)  # fmt: skip
SEVENTY = Shape(
    name="70 B, int4", num_layers=80, hidden=8192, num_heads=64,
    weight_bytes=38e9, num_weights=70e9, kv_bytes=80 * 2 * 8 * 128 * 2,
)  # fmt: skip
#: Assumed, neither measured nor looked up: machines of about this size.
SOCKET = Node(bytes_per_s=240e9, flops=20e12)
DEVICE = Node(bytes_per_s=2.7e12, flops=400e12)
NVLINK = Link(name="NCCL, NVLink", sum_s=10e-6, sum_rate=200e9)
ETHERNET = Link(name="gloo, 25 Gbit/s", sum_s=0.2e-3, sum_rate=2e9)
#: Of *medium* and its int4 form at contexts of 512 (docs/log/ranks.md): the speed of ranks.
MEASURED = (
    (MEDIUM, {1: 0.96, 4: 1.04, 16: 1.01}),
    (MEDIUM_INT4, {1: 1.00, 4: 1.02, 16: 1.02}),
)


def _checks() -> Table:
    table = Table("model", "sequences", "computed", "measured", title="on the machine of the log")
    for shape, speeds in MEASURED:
        for num, measured in speeds.items():
            computed = here_speed(shape, SHARED_MEMORY, num_sequences=num, context=512)
            table.add_row(shape.name, str(num), f"{computed:.2f}", f"{measured:.2f}")
    return table


def _table() -> Table:
    table = Table(
        "model", "ranks on", "sums by", "sequences", "one", "ranks, ms", "speed",
        title="computed of assumed machines",
    )  # fmt: skip
    for shape, node, where, link in (
        (SEVEN, SOCKET, "two sockets", SHARED_MEMORY),
        (SEVENTY, SOCKET, "two sockets", SHARED_MEMORY),
        (SEVEN, SOCKET, "two hosts", ETHERNET),
        (SEVENTY, SOCKET, "two hosts", ETHERNET),
        (SEVENTY, DEVICE, "two GPUs", NVLINK),
    ):
        for num in (1, 16, 64):
            one_s = step_s(shape, node, num_sequences=num, context=1024)
            two_s = divided_step_s(shape, node, link, num_ranks=2, num_sequences=num, context=1024)
            table.add_row(
                shape.name, where, link.name, str(num),
                f"{one_s * 1e3:.1f}", f"{two_s * 1e3:.1f}", f"{one_s / two_s:.2f}",
            )  # fmt: skip
    return table


def here_speed(shape: Shape, link: Link, *, num_sequences: int, context: int) -> float:
    """Return the speed of two ranks of one core beside one process of both, on this machine."""
    both = replace(HERE, bytes_per_s=2 * HERE.bytes_per_s, flops=2 * HERE.flops)
    one_s = step_s(shape, both, num_sequences=num_sequences, context=context)
    two_s = divided_step_s(
        shape, HERE, link, num_ranks=2, num_sequences=num_sequences, context=context
    )
    return one_s / two_s


def main() -> None:
    """Print computed beside measured speeds, then what the model says of assumed machines."""
    console = Console(width=110)
    console.print(_checks())
    console.print(_table())


if __name__ == "__main__":
    main()
