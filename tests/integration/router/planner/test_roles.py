"""Orders that change the role for which a worker is preferred, and what requests see of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from services.router.fleet.roles import Preferred
from shared.directory.base import STAGE
from shared.errors import InvalidRequestError, NoWorkerError, UnavailableError, UnsupportedError
from shared.identity import Role
from tests.fakes.scripted.decode import ScriptedDecode, say

if TYPE_CHECKING:
    from tests.integration.router.conftest import Bench

BOTH = frozenset({Role.PREFILL, Role.DECODE})


async def report(bench: Bench, worker: ScriptedDecode) -> None:
    """The heartbeat that a worker sends after an order."""
    load = worker.load(preference=worker.preference)
    await bench.parts.registry.heartbeat(worker.record.worker, load)


async def test_an_order_ends_when_this_router_has_heard_of_it(bench: Bench) -> None:
    p = await bench.add_worker(say(70), name="p", role=Role.PREFILL, serves=BOTH)
    d = await bench.add_worker(say(71), name="d", serves=BOTH)
    assert len(p.canaries) == len(d.canaries) == 1
    assert (await bench.answer()).token_ids() == (71,)
    for worker, role in ((p, Role.DECODE), (d, Role.PREFILL)):
        ordered = asyncio.create_task(bench.parts.fleet.prefer(worker.name, role))
        await worker.wait_orders(1)
        assert not (await asyncio.wait({ordered}, timeout=0.05))[0]
        await report(bench, worker)
        assert await ordered == Preferred(
            worker=worker.name, role=role, from_step=3, limits=("no drafts",)
        )
    assert [e.name for e in bench.parts.endpoints.of_role(Role.DECODE)] == ["p"]
    assert (await bench.answer()).token_ids() == (70,)
    # The prompt would be computed by the other one.
    [candidate] = p.requests[-1].prefill_candidates
    assert candidate.worker.name == "d"


async def test_a_prefill_worker_answers_while_no_decode_worker_can(bench: Bench) -> None:
    p = await bench.add_worker(say(70), name="p", role=Role.PREFILL, serves=BOTH)
    pool = bench.parts.endpoints
    [note] = pool.notes()
    assert note == "no decode worker is ready: prefill workers write the answers themselves"
    assert bench.parts.models.max_model_len == 512
    d = await bench.add_worker(say(71), name="d", max_model_len=256, serves=BOTH)
    assert (pool.notes(), bench.parts.models.max_model_len) == ([], 256)
    assert (await bench.answer()).token_ids() == (71,)
    await bench.parts.registry.deregister(d.record.worker)
    async with asyncio.timeout(10):
        await pool.wait_until(lambda: not pool.of_role(Role.DECODE))
    assert (await bench.answer()).token_ids() == (70,)
    assert not p.requests[-1].prefill_candidates
    assert bench.parts.models.max_model_len == 512


async def test_what_cannot_be_done_is_refused_by_name(bench: Bench) -> None:
    fleet = bench.parts.fleet
    old = await bench.add_worker(name="old", role=Role.PREFILL)
    assert old.canaries == []
    with pytest.raises(NoWorkerError):
        await bench.answer()
    with pytest.raises(UnsupportedError, match="old serves prefill alone"):
        await fleet.prefer("old", Role.DECODE)
    assert await fleet.prefer("old", Role.PREFILL) == Preferred(worker="old", role=Role.PREFILL)
    with pytest.raises(InvalidRequestError, match="there is no worker 'new'; alive: old"):
        await fleet.prefer("new", Role.DECODE)
    sleeper = ScriptedDecode(name="sleeper")
    await sleeper.start(serves=BOTH, labels={STAGE: "asleep"})
    await bench.parts.registry.register(sleeper.record, 60)
    async with asyncio.timeout(10):
        await bench.parts.endpoints.wait_until(lambda: bench.parts.endpoints.is_asleep)
    with pytest.raises(UnavailableError, match="sleeper sleeps: wake it up first"):
        await fleet.prefer("sleeper", Role.PREFILL)
    await bench.parts.registry.deregister(replace(sleeper.record).worker)
    await sleeper.die()
    assert old.orders == sleeper.orders == []
