from __future__ import annotations

import random
from collections import Counter
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from services.router.routing.base import RoutingRequest
from services.router.routing.policies import find, least_loaded
from services.router.routing.policies.find import OURS, find_policy
from shared.errors import ConfigError
from shared.identity import Role
from tests.unit.router.routing.workers import BLOCK_SIZE, SPACE, Cluster, endpoint, hashes

if TYPE_CHECKING:
    from services.router.workers.endpoint import Endpoint

PROMPT = hashes(*range(1, 41))
REQUEST = RoutingRequest(
    num_prompt_tokens=40 * BLOCK_SIZE, max_tokens=10, block_hashes={SPACE: PROMPT}
)


def _cluster(policy: str) -> tuple[Cluster, list[Endpoint]]:
    """p waits longest and holds all, q waits and holds a block, r does neither."""
    workers = [endpoint(name) for name in "pqr"]
    cluster = Cluster(endpoint("d", Role.DECODE), *workers, policy=policy)
    cluster.holders.hold(workers[0], PROMPT)
    cluster.holders.hold(workers[1], PROMPT[:1])
    workers[0].work.add_prompt(1, 10, 20_000.0, cluster.clock())
    workers[1].work.add_prompt(1, 10, 100.0, cluster.clock())
    return cluster, workers


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("cost", ["r", "q", "p"]),
        ("least-loaded", ["r", "q", "p"]),
        ("cache-first", ["p", "r", "q"]),
        ("round-robin", ["p", "q", "r"]),
    ],
)
def test_what_each_policy_prefers(policy: str, order: list[str]) -> None:
    cluster, _ = _cluster(policy)
    assert [e.name for e in cluster.chooser.route(REQUEST).prefill] == order


def test_round_robin_goes_round_and_explanations_do_not_turn_it() -> None:
    cluster, _ = _cluster("round-robin")
    firsts = []
    for _ in range(5):
        cluster.chooser.decide(REQUEST)
        firsts.append(cluster.chooser.route(REQUEST).prefill[0].name)
    assert firsts == ["p", "q", "r", "p", "q"]


def test_random_takes_everybody() -> None:
    cluster, _ = _cluster("random")
    counts = Counter(cluster.chooser.route(REQUEST).prefill[0].name for _ in range(600))
    assert all(150 < counts[name] < 250 for name in "pqr")


def test_least_loaded_does_not_look_at_holders() -> None:
    cluster, workers = _cluster("least-loaded")
    workers[0].work.end_prompt(1, cluster.clock())
    cluster.holders.hold(workers[2], PROMPT)
    counts = Counter(cluster.chooser.route(REQUEST).prefill[0].name for _ in range(200))
    assert set(counts) == {"p", "r"}


@pytest.mark.parametrize("name", OURS)
def test_every_policy_is_found_by_its_own_name(name: str) -> None:
    assert find_policy(name, random.Random(0)).name == name


def test_a_package_can_bring_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("theirs", f"{least_loaded.__name__}:policy", find.ENTRY_POINT_GROUP)
    broken = EntryPoint("broken", "no_such_package:policy", find.ENTRY_POINT_GROUP)
    monkeypatch.setattr(find, "entry_points", lambda group: [entry, broken])
    assert find_policy("theirs", random.Random(0)).name == "least-loaded"
    with pytest.raises(ConfigError, match="cannot be loaded"):
        find_policy("broken", random.Random(0))
    with pytest.raises(ConfigError, match=r"known: cost, .*broken, theirs"):
        find_policy("nobody's", random.Random(0))
