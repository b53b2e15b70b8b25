"""A simulated worker whose steps have prompts and sequences in them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.routing.block_cache import BlockCache
from shared.engine.timing.step_bound import LONGEST_STEP_MS, prompt_room_ms

if TYPE_CHECKING:
    from benchmarks.routing.step_time import StepTime
    from benchmarks.routing.traces import Arrival
    from services.router.routing.base import Route
    from services.router.routing.book import Booking
    from services.router.workers.endpoint import Endpoint

#: Prompt tokens of a step, and its sequences.
MAX_BATCHED_TOKENS = 2048
MAX_SEQUENCES = 64


@dataclass(slots=True, eq=False)
class Answer:
    """A request on its way."""

    arrival: Arrival
    route: Route
    booking: Booking
    #: Tokens of the prompt that its present worker computes.
    target: int = 0
    num_held: int = 0
    num_computed: int = 0
    #: Tokens of the prompt that the last step computed.
    num_last: int = 0
    num_tokens: int = 0
    begun_ms: float = -1.0
    first_ms: float = 0.0
    last_ms: float = 0.0
    #: Time for which its second token waited for blocks.
    exposed_ms: float = 0.0


def _has_waited(answer: Answer) -> bool:
    """Return whether its prompt was computed elsewhere, and its second token is next."""
    return answer.num_tokens == 1 and bool(answer.route.prefill)


#: A prompt, and how many of its tokens a step computes.
Chunk = tuple[Answer, int]


class MixedWorker:
    """One worker. A step is under way while `is_busy`."""

    def __init__(self, endpoint: Endpoint, time: StepTime, num_blocks: int) -> None:
        self.endpoint = endpoint
        self.time = time
        self.prompts: deque[Answer] = deque()
        self.decoding: list[Answer] = []
        self.is_busy = False
        self.cache = BlockCache(num_blocks)

    def plain(self) -> tuple[float, list[Answer]]:
        """Return the time of a step without prompts, and its sequences."""
        batch = self.decoding[:MAX_SEQUENCES]
        held = sum(each.arrival.num_tokens + each.num_tokens for each in batch)
        return self.time.decode_ms(len(batch), held), batch

    def beside_ms(self, plain_ms: float) -> float:
        """Return how long prompts may take for each step of sequences that takes `plain_ms`."""
        return prompt_room_ms(plain_ms, self.time.each_ms)

    def plan(self) -> tuple[float, list[Answer], list[Chunk]]:
        """Return the next step: its time, its sequences, and its chunks."""
        took_ms, batch = self.plain()
        room_ms = 0.0 if any(map(_has_waited, batch)) else self.beside_ms(took_ms)
        if not batch:
            took_ms = self.time.each_ms / 2
            room_ms = LONGEST_STEP_MS - took_ms
        budget = MAX_BATCHED_TOKENS - len(batch)
        chunks = []
        for prompt in self.prompts:
            left = prompt.target - prompt.num_computed
            num = min(left, budget)
            num = min(num, self.time.most_tokens(room_ms, prompt.num_computed))
            if num <= 0:
                break
            ms = self.time.prompt_ms(num, prompt.num_computed)
            took_ms, room_ms, budget = took_ms + ms, room_ms - ms, budget - num
            chunks.append((prompt, num))
        return took_ms, batch, chunks
