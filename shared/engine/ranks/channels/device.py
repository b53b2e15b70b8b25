"""A group on one host whose ranks compute on CUDA devices. It has never run on one."""

from __future__ import annotations

import os
from datetime import timedelta

import msgspec
import torch
from torch._C import _distributed_c10d as c10d

from shared.engine.ranks.channels.memory import GroupMemory, MemoryChannels
from shared.engine.ranks.channels.socket import JOIN_S
from shared.errors import ConfigError, RankError
from shared.model.device import read_device
from shared.ranks.nccl_group import nccl_collective


class DeviceGroup(msgspec.Struct, tag=True, frozen=True):
    """A `Group`: sums inside the model by NCCL, and all else by memory."""

    memory: GroupMemory
    #: By rank.
    devices: list[str]
    #: Of a file without a name, in which NCCL's ranks find each other. It stays open until the
    #: process ends: PyTorch writes to it when the last of its own objects goes, whenever that is.
    store: int

    @property
    def fds(self) -> list[int]:
        """See `Group`."""
        return [*self.memory.fds, self.store]

    def join(self, rank: int, *, expert_parallel: bool = False) -> DeviceChannels:
        """See `Group`."""
        return DeviceChannels(self, rank, expert_parallel=expert_parallel)


def devices_of(size: int, asked_by: str) -> list[str]:
    """Return the names of `size` devices, by rank. asked_by: the setting, for the error.

    Raises:
        ConfigError: there are not so many.
    """
    names = [f"cuda:{rank}" for rank in range(size)]
    try:
        read_device(names[-1])
    except ConfigError as error:
        raise ConfigError(f"{asked_by} takes {names[0]} to {names[-1]}: {error}") from error
    return names


def on_devices(memory: GroupMemory, devices: list[str]) -> DeviceGroup:
    """Return the group of a host's memory, with its ranks on these devices."""
    return DeviceGroup(memory, devices, os.memfd_create("baton-nccl", os.MFD_CLOEXEC))


class DeviceChannels(MemoryChannels):
    """`Channels` of a rank on a device.

    Raises:
        ConfigError: see `Membership`.
        RankError: another rank did not come.
    """

    def __init__(self, group: DeviceGroup, rank: int, *, expert_parallel: bool = False) -> None:
        """Join. The rank's device becomes this thread's current one."""
        super().__init__(group.memory, rank, expert_parallel=expert_parallel)
        self.device = group.devices[rank]
        store = c10d.FileStore(f"/proc/self/fd/{group.store}", self.split.size)
        _wait_for_all(store, rank, self.split.size)
        # Nothing ends the wait for a rank that is lost where NCCL's ranks look for each other. So
        # all are here, and live.
        self.collective.barrier()
        self.sums = nccl_collective(
            store,
            self.split.rank,
            self.split.size,
            torch.device(self.device),
            timeout_s=group.memory.timeout_s,
        )

    def close(self) -> None:
        """See `Channels`."""
        self.sums.close()
        super().close()


def _wait_for_all(store: c10d.Store, rank: int, size: int) -> None:
    """Wait until all ranks' processes have loaded their code, which may take longer than a step."""
    try:
        store.set(_here(rank), "1")
        store.wait([_here(number) for number in range(size)], timedelta(seconds=JOIN_S))
    except RuntimeError as error:
        message = f"rank {rank} waited {JOIN_S:g} s for the other ranks' processes: {error}"
        raise RankError(message) from error


def _here(rank: int) -> str:
    return f"here/{rank}"
