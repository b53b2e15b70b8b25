"""Engines on the fake model, and a way to run them that checks every step."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.engine.engine import Engine
from shared.engine.sequence.events import Admitted, Computed, Failed, NewTokens
from shared.engine.sequence.request import EngineRequest
from shared.engine.settings.engine import EngineConfig
from shared.engine.step.decode_graphs import EagerRecorder
from shared.engine.step.followers.followers import NO_FOLLOWERS, NoFollowers
from shared.engine.step.followers.plan_codec import decode_plan, encode_plan
from shared.engine.step.result import RunningStep, StepResult
from shared.identity import Role
from shared.kv.tier import BlockTier
from shared.request.sampling_params import SamplingParams
from tests.fakes.engine.model import FakeLoadedModel, context_hashes, most_likely

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.engine.adapters.store import AdapterStore
    from shared.engine.sequence.events import EngineEvent
    from shared.engine.step.followers.followers import Followers
    from shared.engine.step.model_runner import ModelRunner
    from shared.engine.step.plan import StepPlan
    from shared.request.answer import FinishReason

BLOCK_SIZE = 4


class StepMode(Enum):
    """How an engine runs its steps; what it answers is the same."""

    SYNCHRONOUS = "synchronous"
    OVERLAPPED = "overlapped"
    #: Decode steps also go through recorded graphs, padded.
    RECORDED = "recorded"
    #: Three are in flight, as if as many stages computed them.
    STAGED = "staged"
    #: A worker's, whose steps of prompts alone have four parts, beside which others decode.
    PARTED = "parted"

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of EngineConfig."""
        return {"async_scheduling": self in (StepMode.OVERLAPPED, StepMode.RECORDED)}

    @property
    def lag(self) -> int:
        """Steps by which events come later."""
        lags = {StepMode.SYNCHRONOUS: 0, StepMode.STAGED: 2, StepMode.PARTED: 3}
        return lags.get(self, 1)

    @property
    def recorder(self) -> EagerRecorder | None:
        """What records decode steps, on any device."""
        return EagerRecorder() if self is StepMode.RECORDED else None

    @property
    def followers(self) -> NoFollowers:
        """The other ranks."""
        return FakeStages(3) if self is StepMode.STAGED else NO_FOLLOWERS


class FakeStages(NoFollowers):
    """No rank follows, but steps are computed as late as a last stage may compute them."""

    def __init__(self, num_stages: int) -> None:
        self.num_stages = num_stages

    def lead(self, runner: Any, config: EngineConfig) -> Any:
        return _Late(runner, self.num_stages)


class _Late:
    """A runner that computes a step when its result is wanted."""

    def __init__(self, runner: ModelRunner, num_stages: int) -> None:
        self.num_stages = num_stages
        self._runner = runner
        self._plans: deque[bytes] = deque()

    def launch(self, plan: StepPlan) -> RunningStep:
        assert len(self._plans) < self.num_stages
        self._plans.append(encode_plan(plan))
        return RunningStep(StepResult(), None, [])

    def collect(self, step: RunningStep) -> StepResult:
        return self._runner.collect(self._runner.launch(decode_plan(self._plans.popleft())))


class ModelInParts:
    """A model that computes a step in the last of its parts, when others have been beside it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.num_begun = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def begin_forward(self, *args: Any) -> Parts:
        self.num_begun += 1
        return Parts(partial(self._model.forward, *args))


class Parts:
    """See `ForwardParts`."""

    def __init__(self, forward: Callable[[], Any]) -> None:
        self._forward = forward
        self._num_left = 4
        #: All are computed by the last part.
        self.num_layers = 0
        self.hidden: Any = None

    def advance(self, room_ms: float) -> bool:
        self._num_left -= 1
        if self._num_left and room_ms < math.inf:
            return False
        self.hidden = self._forward()
        return True

    def drop(self) -> None:
        """Nothing is kept."""


@dataclass
class Defaults:
    """What `make_engine` does unless told otherwise; the suites run once with each mode."""

    mode: StepMode = StepMode.SYNCHRONOUS


defaults = Defaults()


def make_engine(
    loaded: Any = None,
    mode: StepMode | None = None,
    *,
    adapters: AdapterStore | None = None,
    followers: Followers | None = None,
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> Engine:
    """A small engine; `settings` are fields of EngineConfig."""
    mode = mode or defaults.mode
    settings = {"block_size": BLOCK_SIZE, "num_blocks": 64, "max_num_seqs": 8} | settings
    settings = {"max_num_batched_tokens": 64} | mode.settings | settings
    config = EngineConfig(**settings)
    loaded = loaded or FakeLoadedModel()
    if mode is StepMode.PARTED and not hasattr(loaded.model, "begin_forward"):
        loaded = copy(loaded)
        object.__setattr__(loaded, "model", ModelInParts(loaded.model))
    followers = followers or mode.followers
    engine = Engine(
        loaded,
        config,
        recorder=mode.recorder,
        adapters=adapters,
        followers=followers,
        clock=clock,
    )
    if mode is StepMode.PARTED:
        engine.prefer(Role.PREFILL)
    return engine


def make_request(
    request_id: str, prompt: Sequence[int], *, max_tokens: int = 8, **fields: Any
) -> EngineRequest:
    """A greedy request; `fields` go to the request or to its sampling parameters."""
    own = {name: fields.pop(name) for name in list(fields) if name in EngineRequest.__slots__}
    sampling = SamplingParams(max_tokens=max_tokens, **({"temperature": 0.0, "seed": 0} | fields))
    return EngineRequest(
        request_id=request_id, prompt_token_ids=tuple(prompt), sampling=sampling, **own
    )


def cached_hashes(engine: Engine) -> list[bytes]:
    """Whatever prefix lookup finds in the pool now."""
    return engine.cached.snapshots()[BlockTier.DEVICE]


def expected_tokens(prompt: Sequence[int], num: int) -> list[int]:
    """What the fake model continues with, computed without an engine."""
    *_, value = 1.0, *context_hashes(prompt)
    tokens: list[int] = []
    for _ in range(num):
        tokens.append(most_likely(value))
        (value,) = context_hashes(tokens[-1:], value)
    return tokens


@dataclass
class Run:
    """Everything that came out, by request."""

    events: dict[str, list[EngineEvent]] = field(default_factory=lambda: defaultdict(list))
    num_steps: int = 0

    def tokens(self, request_id: str) -> list[int]:
        return [t for e in self.new_tokens(request_id) for t in e.token_ids]

    def new_tokens(self, request_id: str) -> list[NewTokens]:
        return [e for e in self.events[request_id] if isinstance(e, NewTokens)]

    def admitted(self, request_id: str) -> list[Admitted]:
        return [e for e in self.events[request_id] if isinstance(e, Admitted)]

    def computed(self, request_id: str) -> list[int]:
        events = self.events[request_id]
        return [e.num_computed_tokens for e in events if isinstance(e, Computed)]

    def finish_reason(self, request_id: str) -> FinishReason | None:
        last = self.events[request_id][-1]
        return last.finish_reason if isinstance(last, NewTokens) else None

    def failure(self, request_id: str) -> Exception | None:
        last = self.events[request_id][-1]
        return last.error if isinstance(last, Failed) else None


def drain(
    engine: Engine,
    run: Run | None = None,
    *,
    until: Callable[[Run], bool] = lambda run: False,
    max_steps: int = 5000,
) -> Run:
    """Step until nothing is left to do, checking the bookkeeping after every step."""
    run = run or Run()
    while not until(run) and (engine.has_work() or engine.wait_for_news()):
        assert run.num_steps < max_steps, "the engine makes no progress"
        for event in engine.step():
            run.events[event.request_id].append(event)
        engine.check_integrity()
        run.num_steps += 1
    return run


def generate(engine: Engine, *requests: EngineRequest) -> Run:
    """Add all requests, then run them to their ends."""
    for request in requests:
        engine.add(request)
    return drain(engine)


class Near(list[float]):
    """Equal to what differs by rounding: PyTorch sums other numbers of rows in other orders."""

    def __eq__(self, other: object) -> bool:
        return bool(np.shape(self) == np.shape(other) and np.allclose(self, other, atol=1e-5))


def logprobs_of(run: Run, request_id: str) -> tuple[list[tuple[int, int]], Near]:
    """Tokens and ranks, which are exact, and logprobs."""
    positions = [p for e in run.new_tokens(request_id) for p in e.logprobs]
    told = [token for p in positions for token in (p.chosen, *p.top)]
    return [(t.token_id, t.rank) for t in told], Near(t.logprob for t in told)
