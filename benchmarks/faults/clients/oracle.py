"""The right answers, by one engine in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.faults.clients.ask import Ask, Expected
from benchmarks.faults.system.model import BLOCK_SIZE, DTYPE, MAX_NUM_BATCHED_TOKENS
from shared.engine.llm import LLM
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: One in so many requests of the load ends at a stop string.
STOP_EVERY = 8
_STOP_AT = 0.6


class Oracle:
    """Not thread-safe; close it."""

    def __init__(self, model: Path) -> None:
        self._llm = LLM(
            model,
            dtype=DTYPE,
            block_size=BLOCK_SIZE,
            num_blocks=256,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            num_threads=1,
        )

    def answer(self, ask: Ask) -> Ask:
        """Fill in what is right."""
        params = dict(ask.params)
        n, stop = params.pop("n", 1), params.pop("stop", ())
        sampling = SamplingParams(**params)
        (output,) = self._llm.generate([list(ask.prompt)], sampling, n=n, stop=stop)
        ask.expected = [Expected(tuple(one.token_ids)) for one in output.outputs]
        return ask

    def answer_all(self, asks: Iterable[Ask]) -> list[Ask]:
        """All of them; some get a stop string that really occurs in their answer."""
        done = [self.answer(ask) for ask in asks]
        for ask in done[::STOP_EVERY]:
            tokens = ask.expected[0].token_ids
            text = self._llm.tokenizer.decode(list(tokens[int(_STOP_AT * len(tokens)) :]))
            if stop := text.strip()[:4]:
                ask.params["stop"] = [stop]
                self.answer(ask)
        return done

    def close(self) -> None:
        """Give its memory back."""
        self._llm.close()
