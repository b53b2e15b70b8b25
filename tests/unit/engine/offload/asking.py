"""Prompts, and a way to ask them that checks the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes.engine.engines import BLOCK_SIZE, expected_tokens, generate, make_request
from tests.fakes.engine.offload import settle

if TYPE_CHECKING:
    from shared.engine.engine import Engine
    from shared.kv.tier import BlockTier

#: Five full blocks and a token; with eight tokens of an answer six blocks become final.
PROMPTS = [[n] * 4 + list(range(10, 27)) for n in range(1, 9)]
NUM_TOKENS = 5 * BLOCK_SIZE


def ask(engine: Engine, prompt: list[int], name: str = "a") -> int:
    """Answer, check the answer, wait for the tiers; returns the cached tokens."""
    run = generate(engine, make_request(name, prompt))
    settle(engine)
    engine.check_integrity()
    assert run.tokens(name) == expected_tokens(prompt, 8)
    return run.admitted(name)[0].num_cached_tokens


def counters(engine: Engine, tier: BlockTier) -> dict[str, float]:
    return engine.stats().tiers[tier].counters
