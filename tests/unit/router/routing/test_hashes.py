"""What prompts are hashed with: once for each block size of the weights that most workers have."""

from __future__ import annotations

from services.router.routing.hashes import hashed, spaces_of
from shared.kv.identity import KVIdentity
from tests.unit.router.routing.workers import endpoint


def test_each_block_size_of_the_commonest_weights_has_a_space() -> None:
    small = endpoint("a", identity="w", namespace="08", block_size=8).record
    large = endpoint("b", identity="w", namespace="10", block_size=16).record
    others = [endpoint(n, identity="v", namespace="ff").record for n in "cd"]
    assert spaces_of([]) == {}
    assert spaces_of([small, small, large]) == {"08": 8, "10": 16}
    assert spaces_of([small, *others, large, small]) == {"08": 8, "10": 16}
    assert spaces_of([small, *others]) == {"ff": 16}
    odd = endpoint("e", identity="w", namespace="odd").record
    assert spaces_of([odd, small]) == {"08": 8}
    # Workers that name no identity are known by their namespace.
    unnamed = [endpoint("f", namespace="08").record, endpoint("g", namespace="10").record]
    assert spaces_of([*unnamed, unnamed[1]]) == {"10": 16}


def test_a_prompt_is_hashed_in_every_space() -> None:
    tokens = range(37)
    found = hashed({"08": 8, "10": 16}, tokens, KVIdentity)
    assert {space: len(hashes) for space, hashes in found.items()} == {"08": 4, "10": 2}
    assert found["10"] == KVIdentity(b"\x10").hash_blocks(tokens, 16)
