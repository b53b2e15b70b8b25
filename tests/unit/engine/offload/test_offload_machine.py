"""Random use of an engine with tiers, where every copy happens at a random time.

The fake model's tokens follow from the bytes of all blocks before them: a block that is reused
while it is copied, or found before its bytes are there, gives wrong tokens.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from shared.engine.offload import build
from shared.kv.identity import HASH_BYTES
from shared.kv.tier import BlockTier
from tests.accounting.effort import examples
from tests.fakes.engine.engines import StepMode
from tests.fakes.engine.model import Chunk, FakeLoadedModel, FakeModel, make_spec
from tests.fakes.engine.offload import SteppedThreads, offload_of, settle, tier_settings
from tests.unit.engine.test_engine_machine import EngineMachine

if TYPE_CHECKING:
    from shared.engine.engine import Engine


class OffloadMachine(EngineMachine):
    """A worker's life with a host and a disk tier, and more prompts than the pool holds."""

    num_blocks = 10
    host_blocks, disk_blocks = 6, 24
    prompts_to_choose: ClassVar = [
        [i] * 4 + list(range(n)) for n in (3, 12, 20) for i in range(1, 6)
    ]

    def make_engine(self, **settings: Any) -> Engine:
        self.folder = Path(tempfile.mkdtemp())
        self.threads: list[SteppedThreads] = []

        def make_threads(*args: Any) -> SteppedThreads:
            self.threads.append(SteppedThreads(*args))
            return self.threads[0]

        tiers = tier_settings(
            host_blocks=self.host_blocks, disk=self.folder, disk_blocks=self.disk_blocks
        )
        with patch.object(build, "TierThreads", make_threads):
            return super().make_engine(**settings, **tiers)

    def settle(self) -> None:
        settle(self.engine)

    @initialize()
    def begin(self) -> None:
        self.promoted = 0
        self.promotions = 0
        self.seen: dict[BlockTier, set[bytes]] = {BlockTier.HOST: set(), BlockTier.DISK: set()}

    @rule(script=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 12)), max_size=12))
    def work(self, script: list[tuple[int, int]]) -> None:
        """Requests come and are computed, while copies lag behind more or less."""
        for which, num_copies in script:
            self.add(which, 1 + which % 8, "c")
            for _ in range(4):
                self.step()
            self.copy(num_copies, which % 2 == 0)

    @rule(num=st.integers(1, 30), disk_first=st.booleans())
    def copy(self, num: int, disk_first: bool) -> None:
        for _ in range(num):
            self.threads[0].run_one(disk_first=disk_first)

    @rule(num_bytes=st.integers(0, 200))
    def damage(self, num_bytes: int) -> None:
        """A file is cut off, or its last byte changes."""
        for path in sorted(self.folder.glob("*/*/*.kv"))[:1]:
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data[: num_bytes or len(data)])

    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        held = [
            *{key[:HASH_BYTES]: None for key in offload_of(self.engine).snapshots()[BlockTier.DISK]}
        ]
        self.promotions += 1

        def done() -> None:
            self.promoted += 1

        drawn = data.draw(st.lists(st.sampled_from(held), max_size=3, unique=True)) if held else []
        self.engine.cached.promote(drawn, done)

    @precondition(lambda self: self.engine.stats().num_free_blocks == self.num_blocks)
    @rule()
    def reset(self) -> None:
        landings = offload_of(self.engine).landings
        if not (self.engine.cached.is_loading or landings.num_slots):
            self.engine.reset_prefix_cache()

    @rule()
    def follow(self) -> None:
        changes = self.engine.take_cache_changes()
        for change in changes:
            known = self.followed if change.tier is BlockTier.DEVICE else self.seen[change.tier]
            known -= known if change.cleared else set(change.removed)
            known |= set(change.stored)
        held = self.engine.cached.snapshots()
        assert {tier: set(keys) for tier, keys in held.items()} == {
            BlockTier.DEVICE: self.followed,
            **self.seen,
        }
        assert len(held[BlockTier.HOST]) <= self.host_blocks
        assert len(held[BlockTier.DISK]) <= self.disk_blocks

    def teardown(self) -> None:
        super().teardown()
        assert self.promoted == self.promotions
        self.engine.check_integrity()
        # No slot and no pin is left, or it would refuse.
        assert offload_of(self.engine).landings.num_slots == 0
        self.engine.reset_prefix_cache()
        assert not offload_of(self.engine).snapshots()[BlockTier.HOST]
        self.engine.close()
        shutil.rmtree(self.folder)


class OverlappedOffloadMachine(OffloadMachine):
    """The same with a step in flight most of the time."""

    mode = StepMode.OVERLAPPED


class WindowedOffloadMachine(OverlappedOffloadMachine):
    """And with a window and with chunks: a load brings what is seen, or does not count."""

    num_blocks = 30
    host_blocks, disk_blocks = 18, 72
    windows = (None, 6, Chunk(7))

    def make_loaded(self) -> Any:
        """See `EngineMachine.make_loaded`."""
        return FakeLoadedModel(model=FakeModel(self.windows), spec=make_spec(windows=self.windows))


class StatefulOffloadMachine(OverlappedOffloadMachine):
    """And with a layer that keeps a state: a load brings a checkpoint or does not count."""

    num_blocks = 26
    host_blocks, disk_blocks = 16, 48

    def make_loaded(self) -> Any:
        """See `EngineMachine.make_loaded`."""
        return FakeLoadedModel(spec=make_spec(num_states=1))


TestOffloadMachine = OffloadMachine.TestCase
TestOverlappedOffloadMachine = OverlappedOffloadMachine.TestCase
TestWindowedOffloadMachine = WindowedOffloadMachine.TestCase
TestStatefulOffloadMachine = StatefulOffloadMachine.TestCase
for _case, _num in (
    (TestOffloadMachine, 10),
    (TestOverlappedOffloadMachine, 6),
    (TestWindowedOffloadMachine, 8),
    (TestStatefulOffloadMachine, 8),
):
    _case.settings = settings(max_examples=examples(_num, 8 * _num), stateful_step_count=60)
del _case, _num
