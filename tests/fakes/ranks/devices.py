"""What stands in for NCCL and recordings where there is no device."""

from __future__ import annotations

import os
import socket
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import torch
from torch.overrides import TorchFunctionMode

from shared.engine.ranks.channels.device import DeviceGroup
from shared.engine.ranks.channels.memory import GroupMemory
from shared.engine.ranks.follower import Follower
from shared.engine.ranks.lines import sender_of
from shared.engine.step.decode_graphs import EagerRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from shared.engine.ranks.base import AnswerSender, Group
    from shared.engine.ranks.orders import Answer
    from shared.engine.ranks.seat import Seat
    from shared.engine.step.decode_graphs import GraphRecorder, StepGraph, StepOutput

_PATIENCE_S = 60.0


class DeviceMeeting:
    """Where the ranks of a group meet, and what they have done there."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=_PATIENCE_S)
        self.aborted = threading.Event()
        #: A rank that comes no more.
        self.stopped: int | None = None
        self.tensors: list[Tensor] = [torch.empty(0)] * size
        #: By rank: operation, shape and dtype, in order.
        self.calls: list[list[tuple[str, tuple[int, ...], torch.dtype]]] = [[] for _ in range(size)]

    def group(self, rank: int) -> FakeNcclGroup:
        """A rank's process group."""
        return FakeNcclGroup(self, rank)


class FakeNcclGroup:
    """The part of `ProcessGroupNCCL` that is used, between threads.

    As there, an operation in the caller's stream returns nothing, and does not end before
    all ranks are in it, or `abort` is called.
    """

    def __init__(self, meeting: DeviceMeeting, rank: int) -> None:
        self._meeting = meeting
        self._rank = rank
        self.is_aborted = False

    def allreduce(self, tensors: Sequence[Tensor], options: Any) -> None:
        (tensor,) = tensors
        total = torch.zeros_like(tensor, dtype=torch.float32)
        for part in self._meet("all_reduce", tensor, options):
            total += part
        self._wait()
        tensor.copy_(total)

    def _allgather_base(self, out: Tensor, tensor: Tensor, options: Any) -> None:
        assert out.numel() == self._meeting.size * tensor.numel()
        parts = self._meet("all_gather", tensor, options)
        out.view(self._meeting.size, -1).copy_(torch.stack([part.flatten() for part in parts]))
        self._wait()

    def broadcast(self, tensors: Sequence[Tensor], options: Any) -> None:
        (tensor,) = tensors
        own = self._meet("broadcast", tensor, options)[options.rootRank].clone()
        self._wait()
        tensor.copy_(own)

    def abort(self) -> None:
        self.is_aborted = True
        self._meeting.aborted.set()
        self._meeting.barrier.abort()

    def _meet(self, act: str, tensor: Tensor, options: Any) -> list[Tensor]:
        self._know(act, tensor, options)
        meeting = self._meeting
        if meeting.stopped == self._rank:
            meeting.aborted.wait(_PATIENCE_S)
        meeting.tensors[self._rank] = tensor
        self._wait()
        return list(meeting.tensors)

    def _know(self, act: str, tensor: Tensor, options: Any) -> None:
        assert not options.asyncOp, "an operation beside the caller's stream"
        assert tensor.is_contiguous()
        self._meeting.calls[self._rank].append((act, tuple(tensor.shape), tensor.dtype))

    def _wait(self) -> None:
        try:
            self._meeting.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise RuntimeError("NCCL communicator was aborted") from error


class LoneNcclGroup(FakeNcclGroup):
    """A rank's, while the others are not there: they have what it has, and are not waited for."""

    def _meet(self, act: str, tensor: Tensor, options: Any) -> list[Tensor]:
        self._know(act, tensor, options)
        return [tensor] * self._meeting.size

    def _wait(self) -> None:
        pass


class FollowerThreads:
    """In place of `FollowerProcesses`: followers as threads, each with a recorder."""

    recorders: ClassVar[dict[int, GraphRecorder]] = {}

    def __init__(
        self,
        lines: Mapping[int, socket.socket],
        group: Group,
        *,
        seats: Mapping[int, Seat],
        **_: object,
    ) -> None:
        self.pids = ()
        # As a process gets it.
        group = msgspec.json.decode(msgspec.json.encode(group), type=GroupMemory | DeviceGroup)
        self._threads = [
            threading.Thread(
                target=self._follow,
                args=(rank, group, socket.socket(fileno=os.dup(line.fileno())), seats[rank]),
                daemon=True,
            )
            for rank, line in lines.items()
        ]
        for thread in self._threads:
            thread.start()

    def close(self, *, at_once: bool = False) -> None:
        for thread in self._threads:
            thread.join(_PATIENCE_S)
            assert not thread.is_alive()

    def _follow(self, rank: int, group: Group, line: socket.socket, seat: Seat) -> None:
        channels = group.join(rank)
        plans = channels.receive_plans()
        recorder = self.recorders.get(rank)
        answers = _NoDescriptors(sender_of(line))
        Follower(channels, plans, None, answers, seat, recorder=recorder).follow()
        channels.close()
        plans.close()
        line.close()


@dataclass
class _NoDescriptors:
    """A follower's line, on which no memory is passed: no process maps a device's."""

    line: AnswerSender

    def send(self, answer: Answer, _fd: int | None = None) -> None:
        self.line.send(answer)


class HostReadError(AssertionError):
    """A recording would contain what waits for the device, or comes from the host."""


class NoHostReads(TorchFunctionMode):
    """Refuses what no recording on a device can contain, but for what kernels do on a CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if (name in _HOST_READS or _reads_index(name, args)) and not _in_kernels():
            raise HostReadError(name)
        return func(*args, **(kwargs or {}))


#: Names of functions and methods that wait for a device, or that copy numbers of the host to it.
_HOST_READS = {
    *("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"),
    *("nonzero", "masked_select", "unique", "unique_consecutive", "bincount", "is_nonzero"),
    *("equal", "allclose", "__contains__", "repeat_interleave", "pin_memory"),
    *("tensor", "as_tensor", "new_tensor", "from_numpy", "frombuffer"),
}


def _reads_index(name: str, args: Any) -> bool:
    """Whether an index is a mask, whose size the host must know, or numbers of the host."""
    if name == "where":
        return len(args) == 1
    if name not in ("__getitem__", "__setitem__"):
        return False
    indices = args[1] if isinstance(args[1], tuple) else (args[1],)
    masks = (each for each in indices if isinstance(each, torch.Tensor))
    return any(isinstance(each, list) for each in indices) or any(
        mask.dtype is torch.bool for mask in masks
    )


def _in_kernels() -> bool:
    """Whether a kernel's implementation on a CPU asks: on a device Triton's has its place."""
    frame = sys._getframe(2)
    while frame is not None:
        if f"{os.sep}kernels{os.sep}" in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class RegionRecorder(EagerRecorder):
    """Runs what would be recorded without host reads, and knows which operations were inside."""

    def __init__(self, calls: list[Any]) -> None:
        """calls: the list to which the rank's collective operations are added."""
        self._calls = calls
        #: Whether the device refuses to end a recording.
        self.fails = False
        #: By recorded step: its operations.
        self.regions: list[list[Any]] = []
        #: Sizes that were replayed.
        self.replayed: list[int] = []

    def record(self, step: Callable[[], StepOutput]) -> StepGraph:
        def region() -> StepOutput:
            with NoHostReads():
                return step()

        before = len(self._calls)
        graph = super().record(region)
        self.regions.append(self._calls[before:])
        if self.fails:
            raise ZeroDivisionError
        return _Replayed(graph, self.replayed)


class _Replayed:
    def __init__(self, graph: StepGraph, replayed: list[int]) -> None:
        self._graph, self._replayed = graph, replayed

    def replay(self) -> StepOutput:
        output = self._graph.replay()
        self._replayed.append(len(output.logits))
        return output
