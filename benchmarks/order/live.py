"""The whole engine with a small random model, by the clock on the wall."""

from __future__ import annotations

import random
import time
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.order.workload import Waits
from shared.engine.engine import Engine
from shared.engine.sequence.events import Failed, NewTokens
from shared.engine.sequence.request import EngineRequest
from shared.engine.settings.engine import EngineConfig
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.order.workload import Arrival, Mix
    from shared.engine.settings.choices import SchedulingPolicy

_VOCAB = 512


class LiveEngine:
    """An engine of a model in a folder, which it makes. Use one for each policy."""

    def __init__(self, folder: Path, policy: SchedulingPolicy, *, longest: int) -> None:
        spec = CheckpointSpec(
            num_layers=4, hidden_size=256, intermediate_size=512,
            max_position_embeddings=longest + 16,
        )  # fmt: skip
        if not (folder / "config.json").exists():
            write_random_checkpoint(folder, spec)
        config = EngineConfig(
            num_blocks=8 * longest // 16,
            max_num_seqs=64,
            max_num_batched_tokens=512,
            enable_prefix_caching=False,
            scheduling_policy=policy,
        )
        self._engine = Engine(load_model(folder), config)
        self._rng = random.Random(1)

    def seconds_of(self, num_tokens: int, num: int) -> float:
        """Return the median time of a prompt of this length, of so many one after the other."""
        times = []
        for number in range(num):
            self._engine.add(self._request(f"warm{number}", num_tokens))
            began_s = time.monotonic()
            while self._engine.has_work():
                self._engine.step()
            times.append(time.monotonic() - began_s)
        return median(times)

    def run(self, arrivals: list[Arrival], mix: Mix) -> Waits:
        """Compute all prompts as they come; return how long each waited for its first token."""
        waits, coming = Waits(), deque(arrivals)
        arrived: dict[str, Arrival] = {}
        began_s = time.monotonic()
        while coming or self._engine.has_work():
            now_s = time.monotonic() - began_s
            if not self._engine.has_work() and coming[0].at_s > now_s:
                time.sleep(coming[0].at_s - now_s)
            while coming and coming[0].at_s <= time.monotonic() - began_s:
                arrival = coming.popleft()
                name = str(len(arrived))
                arrived[name] = arrival
                self._engine.add(self._request(name, arrival.num_tokens))
            before_s = time.monotonic()
            events = self._engine.step()
            now_s = time.monotonic()
            waits.busy_s += now_s - before_s
            for event in events:
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, NewTokens):
                    one = arrived[event.request_id]
                    wait_s = now_s - began_s - one.at_s
                    is_long = mix.is_long(one.num_tokens)
                    (waits.long_s if is_long else waits.short_s).append(wait_s)
        return waits

    def close(self) -> None:
        """Free the memory."""
        self._engine.close()

    def _request(self, name: str, num_tokens: int) -> EngineRequest:
        return EngineRequest(
            request_id=name,
            prompt_token_ids=tuple(self._rng.choices(range(_VOCAB), k=num_tokens)),
            sampling=SamplingParams(max_tokens=1, temperature=0.0, seed=0),
        )
