"""The host fails its processes: the disk is full, the clock jumps."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.faults.kinds.base import Fault, Scene

if TYPE_CHECKING:
    from benchmarks.faults.process import Process

#: Blocks of some prompts fit, so that the rest goes to disk.
OFFLOAD_FLAGS = ("--kv-offload-host-gib", "0.002", "--kv-offload-disk-gib", "1")
JUMP_S = 3600
_CHUNK = bytes(1 << 20)


class FullDisk(Fault):
    """Nothing can be written: no KV tier on disk, no log line, no file of Redis."""

    name = "full disk"

    def impossible(self, scene: Scene) -> str | None:
        """See `Fault`."""
        folder = scene.cluster.folder
        return None if folder.is_mount() else "needs root, to mount a disk that is small enough"

    async def prepare(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.target = scene.choose("decode")
        tier = scene.cluster.folder / f"tier-{scene.target}"
        scene.cluster.restart(scene.target, *OFFLOAD_FLAGS, "--kv-offload-disk-dir", str(tier))
        await scene.cluster.wait_ready()

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        await asyncio.to_thread(_fill, scene.cluster.folder / "filler")

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        (scene.cluster.folder / "filler").unlink(missing_ok=True)

    async def restore(self, scene: Scene) -> None:
        """See `Fault`."""
        scene.cluster.restart(scene.target)

    def touched(self, scene: Scene) -> set[str]:
        """See `Fault`."""
        return set()


class ClockJump(Fault):
    """The wall clock of both workers of a role jumps an hour ahead."""

    def __init__(self, role: str) -> None:
        self.name = f"clock jump {role}"
        self._role = role

    def impossible(self, scene: Scene) -> str | None:
        """See `Fault`."""
        return None if _library() else "needs libfaketime (apt install libfaketime)"

    async def prepare(self, scene: Scene) -> None:
        """See `Fault`."""
        library = _library()
        assert library is not None
        self._set(scene, 0)
        for process in self._processes(scene):
            # Only the wall clock: no kernel lets the monotonic one jump.
            process.environ |= {
                "LD_PRELOAD": str(library),
                "FAKETIME_TIMESTAMP_FILE": str(_file(scene)),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
            scene.cluster.restart(process.name)
        await scene.cluster.wait_ready()

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        self._set(scene, JUMP_S)

    async def restore(self, scene: Scene) -> None:
        """See `Fault`."""
        for process in self._processes(scene):
            process.environ = {k: v for k, v in process.environ.items() if "BATON" in k}
            scene.cluster.restart(process.name)

    def touched(self, scene: Scene) -> set[str]:
        """See `Fault`: libfaketime itself makes them slow, before the jump and after it."""
        return {process.name for process in self._processes(scene)}

    def _processes(self, scene: Scene) -> list[Process]:
        return [scene.cluster.processes[name] for name in scene.cluster.of_role(self._role)]

    def _set(self, scene: Scene, seconds: int) -> None:
        _file(scene).write_text(f"+{seconds}s\n", encoding="utf-8")


class LeasesEnd(Fault):
    """What an hour's jump of Redis' clock does: every lease ends at once.

    Redis itself does not start under libfaketime: its allocator asks for the time too early.
    """

    name = "clock jump redis"

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        await scene.cluster.let_redis_time_pass(JUMP_S)

    def touched(self, scene: Scene) -> set[str]:
        """See `Fault`."""
        return set()


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(_CHUNK) == len(_CHUNK):
            pass


def _file(scene: Scene) -> Path:
    return scene.cluster.folder / "clock"


def _library() -> Path | None:
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
