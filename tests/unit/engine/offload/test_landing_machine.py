"""Random use of an engine whose pool is mostly full, while peers fill slots of its host tier.

What a peer has not written yet is garbage: used early, or given away too soon, it gives wrong
tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from shared.engine.sequence.events import Landing
from shared.engine.settings.choices import SchedulingPolicy
from tests.accounting.effort import examples
from tests.fakes.engine.engines import BLOCK_SIZE, StepMode
from tests.unit.engine.offload.test_offload_machine import OffloadMachine

if TYPE_CHECKING:
    from shared.engine.sequence.events import EngineEvent


FATES = st.sampled_from(
    ["stays", "arrives", "arrives", "arrives in part", "is cancelled then", "cancelled", "fails"]
)


class LandingMachine(OffloadMachine):
    """A tier of which half may be landed in, over a disk that what leaves it goes to."""

    host_blocks, disk_blocks = 16, 24
    policy = SchedulingPolicy.URGENCY
    mode = StepMode.OVERLAPPED

    def take(self, events: list[EngineEvent]) -> None:
        """See `EngineMachine.take`. Slots are garbage until they are filled."""
        for event in events:
            if isinstance(event, Landing):
                for table in event.tables:
                    event.memory.blocks[[slot for slot in table if slot >= 0]] = 0xA5
        super().take(events)

    @rule(script=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2), FATES), max_size=12))
    def crowd(self, script: list[tuple[int, int, str]]) -> None:
        """Prompts come from peers, and stay on their way for a while."""
        for which, num_copies, fate in script:
            self.add(which, 1 + which % 8, "t")
            for _ in range(2):
                self.step()
            self.copy(num_copies, which % 2 == 0)
            names = self.landings()
            if names and fate != "stays":
                self.end_landing(names[which % len(names)], fate)

    def end_landing(self, name: str, fate: str) -> None:
        """One of those in slots arrives, fails, arrives in part, or is given up."""
        to, prompt = self.receiving.pop(name), self.prompts[name]
        if fate == "cancelled":
            self.engine.abort(name)
            return
        self.tokens[name] = []
        if fate == "fails":
            self.engine.fail_transfer(name)
            return
        self.send(name, to)
        if fate == "arrives in part":
            self.engine.complete_transfer(name, num_tokens=BLOCK_SIZE)
            return
        self.tokens[name] = self.expected(prompt, 1)
        self.engine.complete_transfer(name, self.tokens[name][0])
        if fate == "is cancelled then":
            self.engine.abort(name)

    def landings(self) -> list[str]:
        """Requests whose slots a peer may fill."""
        return sorted(name for name, to in self.receiving.items() if isinstance(to, Landing))


class FirstComeLandingMachine(LandingMachine):
    """First come, first served, and each step collected before the next."""

    policy = SchedulingPolicy.FCFS
    mode = StepMode.SYNCHRONOUS


TestLandingMachine = LandingMachine.TestCase
TestFirstComeLandingMachine = FirstComeLandingMachine.TestCase
for _case in (TestLandingMachine, TestFirstComeLandingMachine):
    _case.settings = settings(max_examples=examples(8, 80), stateful_step_count=40)
del _case
