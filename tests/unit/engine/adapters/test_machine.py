"""Random use of an engine with more adapters than slots, and more than fit into host memory.

Blocks that two adapters shared, a step with another adapter's slot, or a sequence that is never
admitted, would show in the tokens, or at the end.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.accounting.effort import examples
from tests.fakes.engine.adapted_model import (
    AdaptedFakeModel,
    adapted_tokens,
    make_store,
    write_fake,
)
from tests.fakes.engine.engines import StepMode, make_engine
from tests.fakes.engine.model import FakeLoadedModel
from tests.suites.engine.machine import PROMPTS, EngineMachine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.engine import Engine

NUM_ADAPTERS = 5


class AdaptedPrompt(list[int]):
    """A prompt, and the adapter that it is for; 0: none."""

    def __init__(self, tokens: Sequence[int], value: int) -> None:
        super().__init__(tokens)
        self.value = value


class AdaptedMachine(EngineMachine):
    """Every prompt with and without every adapter."""

    prompts_to_choose: ClassVar = [
        AdaptedPrompt(prompt, value) for value in range(NUM_ADAPTERS + 1) for prompt in PROMPTS
    ]

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.refs = {
            value: write_fake(self.root / str(value), value) for value in range(1, NUM_ADAPTERS + 1)
        }
        self.stores = [make_store(self.root, max_host=3), make_store(self.root, max_host=5)]
        super().__init__()

    def make_loaded(self) -> Any:
        """See `EngineMachine.make_loaded`."""
        return FakeLoadedModel(model=AdaptedFakeModel())

    def make_engine(self, **settings: Any) -> Engine:
        """See `EngineMachine.make_engine`."""
        own = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 3}
        return super().make_engine(**settings, **own, adapters=self.stores[0])

    def make_sender(self) -> Engine:
        """See `EngineMachine.make_sender`."""
        return make_engine(
            self.make_loaded(), enable_lora=True, max_loras=2, adapters=self.stores[1]
        )

    def request_fields(self, prompt: Sequence[int]) -> dict[str, Any]:
        """See `EngineMachine.request_fields`."""
        value = prompt.value if isinstance(prompt, AdaptedPrompt) else 0
        if not value:
            return {}
        for store in self.stores:
            store.ensure(self.refs[value])
        return {"adapter": self.refs[value]}

    def expected(self, prompt: Sequence[int], num: int) -> list[int]:
        """See `EngineMachine.expected`."""
        assert isinstance(prompt, AdaptedPrompt)
        return adapted_tokens(prompt, num, prompt.value)

    @rule(value=st.integers(1, NUM_ADAPTERS))
    def unload(self, value: int) -> None:
        """Those that run keep it; the next request loads it again."""
        if self.stores[0].named(str(value)) is not None:
            self.stores[0].unload(str(value))

    @rule(value=st.integers(1, NUM_ADAPTERS))
    def load(self, value: int) -> None:
        self.stores[0].load(str(value), str(value))

    def consistent_stores(self) -> None:
        for store in self.stores:
            store.check_integrity()

    def teardown(self) -> None:
        """Everybody ends, and the stores know no adapter without a name."""
        super().teardown()
        self.consistent_stores()
        for store in self.stores:
            store.close()
        shutil.rmtree(self.root)


class OverlappedAdaptedMachine(AdaptedMachine):
    """The same with a step in flight most of the time."""

    mode = StepMode.OVERLAPPED


TestAdaptedMachine = AdaptedMachine.TestCase
TestOverlappedAdaptedMachine = OverlappedAdaptedMachine.TestCase
for _case in (TestAdaptedMachine, TestOverlappedAdaptedMachine):
    _case.settings = settings(max_examples=examples(8, 80), stateful_step_count=40)
del _case
