from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.admission.fair_queue import MAX_IDLE_FLOWS, Entry, FairQueue, QueueFullError
from services.router.admission.tenant import Tenant

NAMES = "abcd"
COSTS = st.integers(1, 50)
WEIGHTS = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=4)
#: Tenant, priority, tokens.
PUSHES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-1, 1), COSTS), max_size=60)


def queue(max_requests: int = 10_000, max_tokens: int = 10**9) -> FairQueue[int]:
    return FairQueue(max_requests=max_requests, max_tokens=max_tokens)


def push(waiting: FairQueue[int], tenant: Tenant, num_tokens: int = 1, **rest: int) -> Entry[int]:
    return waiting.push(tenant, 0, num_tokens=num_tokens, cost=num_tokens, **rest)[0]


@given(weights=WEIGHTS, costs=st.lists(COSTS, min_size=4, max_size=30))
def test_who_always_waits_gets_its_weight_within_the_bound_of_the_algorithm(
    weights: list[float], costs: list[int]
) -> None:
    """For any two backlogged tenants: |W_f / w_f - W_g / w_g| <= l_f / w_f + l_g / w_g."""
    tenants = [Tenant(name=n, weight=w) for n, w in zip(NAMES, weights, strict=False)]
    waiting = queue()
    for tenant in tenants:
        for i in range(100):
            push(waiting, tenant, costs[i % len(costs)])
    served: Counter[str] = Counter()
    longest = max(costs)
    while min(waiting.lengths().values()) > 1 and len(waiting.lengths()) == len(tenants):
        entry = waiting.pop()
        served[entry.tenant.name] += entry.num_tokens
        for f in tenants:
            for g in tenants:
                apart = abs(served[f.name] / f.weight - served[g.name] / g.weight)
                assert apart <= longest / f.weight + longest / g.weight + 1e-6
    assert served.total()


@given(weights=WEIGHTS, long=st.integers(1, 100), short=st.integers(1, 100))
def test_costs_that_were_guessed_wrong_are_made_up_for(
    weights: list[float], long: int, short: int
) -> None:
    """Every tenant's requests turn out to cost something else than what was charged."""
    tenants = [Tenant(name=n, weight=w) for n, w in zip(NAMES, weights, strict=False)]
    actual = {t.name: long if i % 2 else short for i, t in enumerate(tenants)}
    waiting = queue()
    for tenant in tenants:
        for _ in range(300):
            waiting.push(tenant, 0, num_tokens=1, cost=10)
    used: Counter[str] = Counter()
    while len(waiting.lengths()) == len(tenants) and min(waiting.lengths().values()) > 1:
        entry = waiting.pop()
        name = entry.tenant.name
        waiting.settle(entry.tenant, charged=entry.cost, cost=actual[name])
        used[name] += actual[name]
    shares = [used[t.name] / t.weight for t in tenants]
    # One request of the two that are furthest apart, charged or used.
    slack = 2 * max(10, long, short) / min(weights)
    assert max(shares) - min(shares) <= slack


@given(pushes=PUSHES, num_pops=st.integers(0, 60))
def test_within_a_tenant_and_priority_first_come_is_first_served(
    pushes: list[tuple[str, int, int]], num_pops: int
) -> None:
    waiting = queue()
    for name, priority, cost in pushes[: len(pushes) // 2]:
        push(waiting, Tenant(name=name), cost, priority=priority)
    last: dict[tuple[str, int], int] = {}
    taken = 0
    for _ in range(min(num_pops, len(waiting))):
        urgent = waiting.head()
        assert urgent is not None
        entry = waiting.pop()
        assert entry is urgent
        key = entry.tenant.name, entry.priority
        assert entry.order > last.get(key, -1)
        last[key] = entry.order
        taken += 1
    for name, priority, cost in pushes[len(pushes) // 2 :]:
        push(waiting, Tenant(name=name), cost, priority=priority)
    # Work-conserving: whoever waits is found, whatever came before.
    while waiting:
        lowest = {n: waiting.ahead(Tenant(name=n), priority=-2)[0] for n in waiting.lengths()}
        assert all(count >= 0 for count in lowest.values())
        waiting.pop()
        taken += 1
    assert taken == len(pushes)
    assert (waiting.num_tokens, waiting.lengths(), waiting.head()) == (0, {}, None)


def test_lower_priorities_of_a_tenant_go_first_and_do_not_touch_others() -> None:
    waiting = queue()
    a, b = Tenant(name="a"), Tenant(name="b")
    normal = [push(waiting, a, priority=5) for _ in range(3)]
    other = push(waiting, b, priority=9)
    urgent = push(waiting, a, priority=-7)
    order = [waiting.pop() for _ in range(5)]
    assert order == [urgent, other, *normal]


@given(burst=st.integers(2, 200), cost=COSTS, num_served=st.integers(1, 100))
def test_nobody_starves_behind_a_burst_and_idling_earns_nothing(
    burst: int, cost: int, num_served: int
) -> None:
    waiting = queue()
    greedy, modest = Tenant(name="greedy"), Tenant(name="modest")
    push(waiting, modest, cost)
    assert waiting.pop().tenant is modest
    for _ in range(burst):
        push(waiting, greedy, cost)
    for _ in range(min(num_served, burst - 1)):
        waiting.pop()
    mine = [push(waiting, modest, cost) for _ in range(burst)]
    ahead, _ = waiting.ahead(Tenant(name="third"))
    assert ahead <= 2
    order = []
    while waiting:
        order.append(waiting.pop())
    # At most one of the other's before mine, and mine do not all come at once either.
    assert order.index(mine[0]) <= 1
    assert order.index(mine[-1]) >= min(burst - 1, len(order) - burst)


@given(pushes=PUSHES, max_requests=st.integers(0, 12), max_tokens=st.integers(0, 120))
def test_the_queue_is_bounded_and_who_keeps_to_its_share_is_never_dropped(
    pushes: list[tuple[str, int, int]], max_requests: int, max_tokens: int
) -> None:
    waiting = queue(max_requests, max_tokens)
    weights = dict(zip(NAMES, (1.0, 1.0, 2.0, 4.0), strict=True))
    inside: list[Entry[int]] = []
    for name, priority, num_tokens in pushes:
        tenant = Tenant(name=name, weight=weights[name])
        before = list(inside)
        try:
            entry, victims = waiting.push(
                tenant, 0, num_tokens=num_tokens, cost=num_tokens, priority=priority
            )
        except QueueFullError:
            losers, kept = [(tenant, priority, num_tokens)], before
        else:
            losers = [(v.tenant, v.priority, v.num_tokens) for v in victims]
            kept = [e for e in (*before, entry) if e not in victims]
        assert sum(waiting.lengths().values()) == len(waiting) == len(kept)
        assert waiting.num_tokens == sum(e.num_tokens for e in kept)
        assert len(kept) <= max_requests
        assert len(kept) <= 1 or waiting.num_tokens <= max_tokens
        inside = kept
        # With what it lost, each loser had more than its share among those who wanted to wait.
        wanted = [(e.tenant, e.priority, e.num_tokens) for e in kept] + losers
        total = sum(weights[n] for n in {t.name for t, _, _ in wanted})
        for loser, _, _ in losers:
            share = loser.weight / total
            own = [n for t, _, n in wanted if t.name == loser.name]
            assert len(own) > share * max_requests - 1 or sum(own) > share * max_tokens - 50


def test_a_full_queue_drops_the_last_of_who_takes_most_and_refuses_who_takes_most() -> None:
    waiting = queue(max_requests=4)
    greedy, modest = Tenant(name="greedy"), Tenant(name="modest")
    mine = [push(waiting, greedy) for _ in range(4)]
    with pytest.raises(QueueFullError):
        push(waiting, greedy)
    for expected in (mine[3], mine[2]):
        _, victims = waiting.push(modest, 0, num_tokens=1, cost=1)
        assert victims == [expected]
    with pytest.raises(QueueFullError):
        push(waiting, modest)
    # What is urgent takes the place of its tenant's own less urgent ones.
    _, victims = waiting.push(greedy, 0, num_tokens=1, cost=1, priority=-1)
    assert victims == [mine[1]]


def test_nobody_is_dropped_for_a_newcomer_that_is_refused_in_the_end() -> None:
    waiting = queue(max_tokens=100)
    push(waiting, Tenant(name="a"), 60)
    push(waiting, Tenant(name="b"), 40)
    with pytest.raises(QueueFullError):
        push(waiting, Tenant(name="c"), 90)
    assert waiting.lengths() == {"a": 1, "b": 1}


def test_weights_count_in_what_a_tenant_may_take_of_the_queue() -> None:
    waiting = queue(max_requests=6)
    large, small = Tenant(name="large", weight=2.0), Tenant(name="small")
    for _ in range(6):
        push(waiting, small)
    for _ in range(4):
        push(waiting, large)
    with pytest.raises(QueueFullError):
        push(waiting, large)
    assert waiting.lengths() == {"large": 4, "small": 2}


@given(weights=WEIGHTS, num=st.integers(1, 20), cost=COSTS)
def test_what_is_said_to_be_ahead_is_what_is_served_before(
    weights: list[float], num: int, cost: int
) -> None:
    waiting = queue()
    tenants = [Tenant(name=n, weight=w) for n, w in zip(NAMES, weights, strict=False)]
    for tenant in tenants:
        for _ in range(num):
            push(waiting, tenant, cost)
    said, said_cost = waiting.ahead(tenants[0])
    newcomer = push(waiting, tenants[0], cost)
    served = 0
    while waiting.pop() is not newcomer:
        served += 1
    assert abs(said - served) <= len(tenants)
    assert abs(said_cost - served * cost) <= len(tenants) * cost


def test_tenants_that_have_gone_are_forgotten() -> None:
    waiting = queue()
    resident = Tenant(name="resident")
    waiting.charge(resident, 1)
    for i in range(10 * MAX_IDLE_FLOWS):
        tenant = Tenant(name=str(i))
        entry = push(waiting, tenant)
        waiting.pop()
        waiting.settle(tenant, charged=entry.cost, cost=1)
        waiting.charge(resident, 1)
        waiting.settle(resident, charged=1, cost=1)
    assert len(waiting._flows) <= MAX_IDLE_FLOWS + 1
    waiting.settle(resident, charged=1, cost=1)
    assert not waiting._flows


def test_what_left_the_queue_cannot_leave_it_again() -> None:
    waiting = queue()
    entry = push(waiting, Tenant(name="a"))
    assert waiting.remove(entry)
    assert not waiting.remove(entry)
    push(waiting, Tenant(name="a"))
    assert not waiting.remove(entry)
    assert len(waiting) == 1
    with pytest.raises(IndexError):
        queue().pop()
