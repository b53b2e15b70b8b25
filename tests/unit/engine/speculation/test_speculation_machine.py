"""Random use of an engine that speculates: nothing is lost, leaked, or said otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import settings

from tests.accounting.effort import examples
from tests.fakes.engine.engines import StepMode, make_engine
from tests.fakes.engine.model import FakeLoadedModel, make_spec
from tests.fakes.engine.proposers import custom
from tests.unit.engine.test_engine_machine import EngineMachine

if TYPE_CHECKING:
    from shared.engine.engine import Engine


class SpeculatingMachine(EngineMachine):
    """With a proposer that is wrong now and then, and takes blocks of the pool."""

    def make_engine(self, **given: Any) -> Engine:
        """See `EngineMachine.make_engine`."""
        config = custom("FakeOracle", wrong_every=3, num_blocks=2)
        return make_engine(self.loaded, self.mode, speculative_config=config, **given)


class OverlappedSpeculatingMachine(SpeculatingMachine):
    """The same where steps overlap while the switch has turned guessing off."""

    mode = StepMode.OVERLAPPED

    def make_engine(self, **given: Any) -> Engine:
        """See `EngineMachine.make_engine`."""
        config = custom("FakeOracle", wrong_every=2, adaptive=True, num_blocks=1)
        return make_engine(self.loaded, self.mode, speculative_config=config, **given)


class StagedSpeculatingMachine(SpeculatingMachine):
    """The same with several steps in flight, each with drafts of its own sequences."""

    mode = StepMode.STAGED


class StatefulSpeculatingMachine(SpeculatingMachine):
    """And with a layer that keeps a state: it is as if rejected drafts had never been computed."""

    def make_loaded(self) -> Any:
        """See `EngineMachine.make_loaded`."""
        return FakeLoadedModel(spec=make_spec(num_states=1))


TestStatefulSpeculatingMachine = StatefulSpeculatingMachine.TestCase
TestStagedSpeculatingMachine = StagedSpeculatingMachine.TestCase
TestSpeculatingMachine = SpeculatingMachine.TestCase
TestOverlappedSpeculatingMachine = OverlappedSpeculatingMachine.TestCase
for _case in (
    TestStatefulSpeculatingMachine,
    TestStagedSpeculatingMachine,
    TestSpeculatingMachine,
    TestOverlappedSpeculatingMachine,
):
    _case.settings = settings(max_examples=examples(8, 60), stateful_step_count=30)
del _case
