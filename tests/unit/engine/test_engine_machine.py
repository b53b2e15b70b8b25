"""Random use of an engine, with made-up and real models and every way of stepping."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hypothesis import settings

from shared.engine.settings.choices import SchedulingPolicy
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.accounting.effort import examples
from tests.fakes.engine.engines import StepMode, generate, make_engine, make_request
from tests.fakes.engine.kv_groups import split_layers
from tests.fakes.engine.model import Chunk, FakeLoadedModel, FakeModel, make_spec
from tests.suites.engine.machine import EngineMachine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.engine import Engine
    from shared.model.loaded import LoadedModel


class OverlappedMachine(EngineMachine):
    """The same with a step in flight most of the time."""

    policy = SchedulingPolicy.URGENCY
    mode = StepMode.OVERLAPPED


class StagedMachine(EngineMachine):
    """And with several, as stages compute them."""

    policy = SchedulingPolicy.URGENCY
    mode = StepMode.STAGED


class PartedMachine(EngineMachine):
    """And with steps of prompts in parts, beside which others decode."""

    policy = SchedulingPolicy.URGENCY
    mode = StepMode.PARTED


class RecordedMachine(EngineMachine):
    """And with decode steps padded to those that were recorded."""

    mode = StepMode.RECORDED


class GroupedMachine(EngineMachine):
    """And with two KV groups, of which each layer is one."""

    mode = StepMode.OVERLAPPED
    num_blocks = 2 * EngineMachine.num_blocks

    def __init__(self) -> None:
        with split_layers(2):
            super().__init__()

    def make_loaded(self) -> Any:
        """See `EngineMachine.make_loaded`."""
        return FakeLoadedModel(spec=make_spec(num_layers=2))


class WindowedMachine(EngineMachine):
    """And with layers of which one has a window, in a group of its own."""

    mode = StepMode.OVERLAPPED
    num_blocks = 2 * EngineMachine.num_blocks
    windows = (None, 6)

    def make_loaded(self) -> Any:
        """See `EngineMachine.make_loaded`."""
        return FakeLoadedModel(model=FakeModel(self.windows), spec=make_spec(windows=self.windows))


class SeveralWindowsMachine(WindowedMachine):
    """And with a window as wide as a block, and with chunks that end within blocks."""

    policy = SchedulingPolicy.URGENCY
    windows = (None, 4, Chunk(9))
    num_blocks = 3 * EngineMachine.num_blocks

    def make_engine(self, **settings: Any) -> Engine:
        """Without a cache, released blocks are written again at once."""
        return super().make_engine(enable_prefix_caching=False, **settings)


class StatefulMachine(EngineMachine):
    """And with a layer that keeps a state, beside one with a window."""

    policy = SchedulingPolicy.URGENCY
    mode = StepMode.OVERLAPPED
    num_blocks = 3 * EngineMachine.num_blocks
    windows: tuple[int | None, ...] = (None, 6)

    def make_loaded(self) -> Any:
        """See `EngineMachine.make_loaded`."""
        spec = make_spec(windows=self.windows, num_states=1)
        return FakeLoadedModel(model=FakeModel(self.windows), spec=spec)


class StagedStatesMachine(StatefulMachine):
    """And with several steps in flight."""

    mode = StepMode.STAGED


class ScarceStatesMachine(StatefulMachine):
    """And with few blocks, so that there is room for checkpoints at times only."""

    mode = StepMode.SYNCHRONOUS
    num_blocks = EngineMachine.num_blocks + 10
    windows = (None,)


@cache
def native_model() -> LoadedModel:
    """A real one, whose memory for results is used again."""
    with TemporaryDirectory() as folder:
        write_random_checkpoint(Path(folder), CheckpointSpec())
        return load_model(Path(folder), attention_backend="native")


@cache
def native_answer(prompt: tuple[int, ...]) -> list[int]:
    """What it answers when nothing is beside it."""
    request = make_request("a", prompt, ignore_eos=True)
    return generate(make_engine(native_model(), StepMode.SYNCHRONOUS), request).tokens("a")


class NativeMachine(EngineMachine):
    """The same with the native model."""

    def make_loaded(self) -> Any:
        """See `EngineMachine.make_loaded`."""
        return native_model()

    def expected(self, prompt: Sequence[int], num: int) -> list[int]:
        """See `EngineMachine.expected`."""
        return native_answer(tuple(prompt))[:num]

    def num_tokens_per_step(self) -> list[int]:
        """See `EngineMachine.num_tokens_per_step`."""
        return []


class OverlappedNativeMachine(NativeMachine):
    """And with a step in flight most of the time."""

    policy = SchedulingPolicy.URGENCY
    mode = StepMode.OVERLAPPED


TestEngineMachine = EngineMachine.TestCase
TestOverlappedMachine = OverlappedMachine.TestCase
TestStagedMachine = StagedMachine.TestCase
TestPartedMachine = PartedMachine.TestCase
TestRecordedMachine = RecordedMachine.TestCase
TestGroupedMachine = GroupedMachine.TestCase
TestWindowedMachine = WindowedMachine.TestCase
TestSeveralWindowsMachine = SeveralWindowsMachine.TestCase
TestStatefulMachine = StatefulMachine.TestCase
TestStagedStatesMachine = StagedStatesMachine.TestCase
TestScarceStatesMachine = ScarceStatesMachine.TestCase
TestNativeMachine = NativeMachine.TestCase
TestOverlappedNativeMachine = OverlappedNativeMachine.TestCase
for _case in (
    TestEngineMachine,
    TestOverlappedMachine,
    TestStagedMachine,
    TestPartedMachine,
    TestRecordedMachine,
    TestGroupedMachine,
    TestWindowedMachine,
    TestSeveralWindowsMachine,
    TestStatefulMachine,
    TestStagedStatesMachine,
    TestScarceStatesMachine,
):
    _case.settings = settings(max_examples=examples(12, 120), stateful_step_count=40)
for _case in (TestNativeMachine, TestOverlappedNativeMachine):
    _case.settings = settings(max_examples=examples(8, 60), stateful_step_count=40)
del _case
