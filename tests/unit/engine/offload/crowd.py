"""An engine with a full pool, whose prompts come from a peer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.engine.sequence.events import Landing
from shared.engine.sequence.request import KVSource
from tests.fakes.engine.engines import BLOCK_SIZE, Run, drain, expected_tokens, make_request
from tests.fakes.engine.landing import fill
from tests.fakes.engine.offload import offload_of, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.engine import Engine

NUM_BLOCKS = 8


class Crowd:
    """An engine whose pool is full: of its blocks, only one is free."""

    def __init__(self, engine: Engine, sender: Engine) -> None:
        self.engine = engine
        self.sender = sender
        self.run = Run()
        held = [90] * (BLOCK_SIZE * (NUM_BLOCKS - 1))
        engine.add(make_request("held", held, hold_blocks=True))
        self.drain()

    def drain(self) -> None:
        """Step until only a peer, or the end of the held request, can change anything."""
        drain(self.engine, self.run)

    def add(self, name: str, prompt: Sequence[int], **fields: Any) -> None:
        """Queue a prompt that a peer is to compute."""
        request = make_request(name, prompt, **fields)
        self.engine.add(replace(request, kv_source=KVSource.TRANSFER))

    def landing(self, name: str) -> Landing:
        """The one event that says where the prompt may be written."""
        (found,) = self.landings(name)
        return found

    def landings(self, name: str) -> list[Landing]:
        return [event for event in self.run.events[name] if isinstance(event, Landing)]

    def arrive(self, name: str, prompt: Sequence[int]) -> None:
        """Let a peer fill its slots, and say so."""
        fill(self.sender, self.engine, self.landing(name), prompt)
        self.engine.complete_transfer(name, expected_tokens(prompt, 1)[0])

    def make_room(self) -> None:
        """End the request that holds the pool, and all others after it."""
        self.engine.release("held")
        self.drain()

    def check(self, name: str, prompt: Sequence[int], first: int = 1) -> None:
        """The peer's first tokens and those from here are the answer."""
        expected = expected_tokens(prompt, 8)
        assert expected[:first] + self.run.tokens(name) == expected

    def check_free(self) -> None:
        """Nothing is held anywhere: no block, no slot, no pin."""
        settle(self.engine)
        assert offload_of(self.engine).landings.num_slots == 0
        assert self.engine.stats().num_free_blocks == NUM_BLOCKS
        # It refuses while a block of a tier is being stored, or pinned.
        self.engine.reset_prefix_cache()
        self.engine.check_integrity()


def hashes_of(engine: Engine, prompt: Sequence[int]) -> list[bytes]:
    """Of the prompt's full blocks."""
    identity = make_request("x", prompt).identity(engine.namespace)
    return identity.hash_blocks(prompt, BLOCK_SIZE)
