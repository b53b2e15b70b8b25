"""Plain greedy requests to one engine, alone and beside neighbours of every kind."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.engine.sequence.events import NewTokens
from shared.engine.sequence.request import EngineRequest
from shared.engine.thread.request_stream import is_last
from shared.request.sampling_params import SamplingParams
from tests.fakes.engine.neighbours import LONG, NEIGHBOURS, Neighbour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.llm import LLM
    from shared.engine.sequence.events import EngineEvent

#: Steps within which all requests of a round come.
_ARRIVAL_STEPS = 12
PLAIN_TOKENS = 12
#: So many plain answers `BATON_COMPANY=full` compares per engine or cluster.
FULL = 1000


def is_full() -> bool:
    """Whether the caller wants all of it."""
    return os.environ.get("BATON_COMPANY") == "full"


def num_answers(usual: int) -> int:
    """How many plain answers a test compares."""
    return FULL if is_full() else usual


def plain_prompts(num: int, *, vocab_size: int, seed: int) -> list[tuple[int, ...]]:
    """Random prompts, some of them longer than a step."""
    rng = random.Random(seed)
    lengths = [rng.choice((1, 5, 16, 17, 33, LONG)) for _ in range(num)]
    return [tuple(rng.randrange(3, vocab_size) for _ in range(length)) for length in lengths]


@dataclass(slots=True)
class _Guest:
    """One request of a round."""

    request: EngineRequest
    step: int
    neighbour: Neighbour | None = None
    token_ids: list[int] = field(default_factory=list)
    is_over: bool = False


class Company:
    """An engine that answers plain prompts. All its settings are for the test to choose."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._alone: dict[tuple[int, ...], list[int]] = {}
        self._num_rounds = 0

    def alone(self, prompt: tuple[int, ...]) -> list[int]:
        """The answer to a plain prompt with nothing beside it."""
        if prompt not in self._alone:
            self.llm.engine.reset_prefix_cache()
            guest = _Guest(_plain("alone", prompt), step=0)
            self._run([guest])
            self._alone[prompt] = guest.token_ids
        return self._alone[prompt]

    def differing(self, prompts: Sequence[tuple[int, ...]], *, seed: int) -> list[str]:
        """Whose answers differ from those alone, in one round with a neighbour of every kind.

        Neighbours that answer plainly are looked at as well.
        """
        for prompt in prompts:
            self.alone(prompt)
        rng = random.Random(seed)
        guests = [
            _Guest(_plain(f"plain-{i}", prompt), rng.randrange(_ARRIVAL_STEPS))
            for i, prompt in enumerate(prompts)
        ]
        for neighbour in NEIGHBOURS:
            if neighbour.sampling is not None:
                prompt = tuple(rng.randrange(3, 300) for _ in range(neighbour.prompt_len))
                if neighbour.answers_plainly:
                    prompt = rng.choice(prompts)
                request = self._request(neighbour, prompt)
                guests.append(_Guest(request, rng.randrange(_ARRIVAL_STEPS), neighbour))
        self.llm.engine.reset_prefix_cache()
        self._run(guests)
        return [wrong for guest in guests if (wrong := self._wrong(guest))]

    def _wrong(self, guest: _Guest) -> str | None:
        """What is wrong with an answer that should be plain."""
        if guest.neighbour is not None and not guest.neighbour.answers_plainly:
            return None
        num = guest.request.sampling.max_tokens
        want = self.alone(guest.request.prompt_token_ids)[:num]
        if guest.token_ids == want:
            return None
        return f"{guest.request.request_id}: {guest.token_ids} instead of {want}"

    def _request(self, neighbour: Neighbour, prompt: tuple[int, ...]) -> EngineRequest:
        assert neighbour.sampling is not None
        fields = {"temperature": 0.0, "max_tokens": neighbour.max_tokens, "ignore_eos": True}
        if "grammar" in neighbour.sampling:
            fields["eos_token_ids"] = self.llm.tokenizer.eos_token_ids
        return self.llm.grammars.ready_now(
            EngineRequest(
                request_id=neighbour.kind,
                sampling=SamplingParams(**{**fields, **neighbour.sampling}),
                **{"prompt_token_ids": prompt, **neighbour.request(self.llm.engine)},
            )
        )

    def _run(self, guests: list[_Guest]) -> None:
        """All of them to their ends; nothing is left behind."""
        engine, step = self.llm.engine, 0
        waiting: dict[int, list[_Guest]] = defaultdict(list)
        here = {guest.request.request_id: guest for guest in guests}
        for guest in guests:
            waiting[guest.step].append(guest)
        while waiting or not all(guest.is_over for guest in guests):
            assert step < 5000, "a request does not end"
            for guest in waiting.pop(step, []):
                engine.add(guest.request)
                self._cancel_if_due(guest)
            if not engine.has_work():  # a mask is awaited, which may be another process's
                engine.wait_for_news()
            for event in engine.step():
                self._take(here[event.request_id], event)
            step += 1
        engine.check_integrity()
        assert engine.stats().num_free_blocks == engine.num_blocks

    def _take(self, guest: _Guest, event: EngineEvent) -> None:
        if isinstance(event, NewTokens):
            guest.token_ids.extend(event.token_ids)
            self._cancel_if_due(guest)
        if is_last(event):
            guest.is_over = True
            if guest.request.hold_blocks:
                self.llm.engine.release(guest.request.request_id)

    def _cancel_if_due(self, guest: _Guest) -> None:
        after = None if guest.neighbour is None else guest.neighbour.cancelled_after
        if after is not None and len(guest.token_ids) >= after:
            self.llm.engine.abort(guest.request.request_id)


def _plain(name: str, prompt: tuple[int, ...]) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=PLAIN_TOKENS, temperature=0.0, ignore_eos=True),
    )
