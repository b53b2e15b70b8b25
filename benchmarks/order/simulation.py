"""The engine's own scheduler, with steps that take what a model of their cost says."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING

from benchmarks.order.workload import Waits
from shared.engine.schedule.build import build_scheduler
from shared.engine.sequence.request import EngineRequest
from shared.engine.sequence.sequence import Sequence
from shared.engine.settings.engine import EngineConfig
from shared.engine.timing.step_model import StepCost, StepModel
from shared.engine.timing.step_work import StepWork
from shared.kv.block_pool import BlockPool
from shared.kv.identity import KVIdentity
from shared.kv.prefix_cache import PrefixCache
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from benchmarks.order.workload import Arrival, Mix
    from shared.engine.settings.choices import SchedulingPolicy

#: About a model of 8 billion weights on one large GPU.
COST = StepCost(6.0, 0.02, 2e-5, 0.06, 4e-7)
_BLOCK_SIZE, _NUM_BLOCKS = 16, 20_000


class Simulation:
    """One worker that computes prompts, by a clock that its steps turn."""

    def __init__(self, policy: SchedulingPolicy, cost: StepCost = COST) -> None:
        self._cost = cost
        self._now_s = 0.0
        self._model = StepModel()
        config = EngineConfig(
            block_size=_BLOCK_SIZE,
            num_blocks=_NUM_BLOCKS,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            scheduling_policy=policy,
        )
        pool = BlockPool(_NUM_BLOCKS)
        self._scheduler = build_scheduler(
            pool,
            PrefixCache(pool, block_size=_BLOCK_SIZE, enabled=False),
            None,
            config,
            model=self._model,
            clock=lambda: self._now_s,
        )
        self._arrived_s: dict[str, float] = {}
        self._numbers = count()

    def run(self, arrivals: list[Arrival], mix: Mix) -> Waits:
        """Compute all prompts; return how long each waited for its first token."""
        waits, coming = Waits(), deque(arrivals)
        while coming or self._scheduler.has_work:
            if not self._scheduler.has_work:
                self._now_s = max(self._now_s, coming[0].at_s)
            while coming and coming[0].at_s <= self._now_s:
                self._add(coming.popleft())
            self._step(waits, mix)
        return waits

    def _add(self, arrival: Arrival) -> None:
        number = next(self._numbers)
        request = EngineRequest(
            request_id=str(number),
            prompt_token_ids=(0,) * arrival.num_tokens,
            sampling=SamplingParams(max_tokens=1, seed=0),
        )
        self._arrived_s[request.request_id] = arrival.at_s
        self._scheduler.add(Sequence(request, arrival=number, identity=KVIdentity(bytes(32))))

    def _step(self, waits: Waits, mix: Mix) -> None:
        step = self._scheduler.schedule().num_new_tokens
        work = StepWork()
        for seq, num in step.items():
            work.add_prompt(num, seq.num_computed_tokens)
        took_ms = self._cost.step_ms(work)
        self._now_s += took_ms / 1e3
        waits.busy_s += took_ms / 1e3
        self._model.observe(work, took_ms)
        for seq, num in step.items():
            self._scheduler.advance(seq, num)
            if seq.num_computed_tokens == seq.num_tokens:
                wait_s = self._now_s - self._arrived_s.pop(seq.request_id)
                is_long = mix.is_long(seq.num_tokens)
                (waits.long_s if is_long else waits.short_s).append(wait_s)
                self._scheduler.finish(seq)
