"""What a worker serves, and how its preference changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from services.worker.config import WorkerProgramConfig
from shared.config import load_config
from shared.errors import DeadlineError, DrainingError, UnsupportedError
from shared.identity import Role
from shared.worker.health.gate import RequestGate
from shared.worker.health.role_metrics import RoleCollector
from shared.worker.roles import BOTH, Preference, WorkerRoles, has_drafts, served_roles

if TYPE_CHECKING:
    from pathlib import Path

    from shared.worker.config import WorkerConfig


def config(model: Path, *flags: str) -> WorkerConfig:
    argv = ["--model", str(model), "--directory", "127.0.0.1:1", *flags]
    return load_config(WorkerProgramConfig, argv, prog="worker", environ={}).worker


@pytest.mark.parametrize(
    ("flags", "role", "served"),
    [
        ((), Role.PREFILL, BOTH),
        ((), Role.DECODE, BOTH),
        (("--runner", "generate", "--convert", "embed"), Role.PREFILL, BOTH),
        (("--runner", "pooling"), Role.PREFILL, {Role.PREFILL}),
    ],
)
def test_a_worker_that_makes_vectors_alone_has_one_service(
    tmp_path: Path, flags: tuple[str, ...], role: Role, served: frozenset[Role]
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert served_roles(config(tmp_path, *flags), role, tmp_path) == served


@pytest.mark.parametrize(
    ("speculative", "flags", "prefill", "decode"),
    [
        ("", (), False, False),
        ('{"method": "ngram", "num_speculative_tokens": 2}', (), True, True),
        ('{"method": "draft_model", "model": "d", "num_speculative_tokens": 2}', (), False, True),
        (
            '{"method": "suffix", "num_speculative_tokens": 2}',
            ("--pipeline-parallel-size", "2"),
            False,
            True,
        ),
    ],
)
def test_a_prefill_worker_has_drafts_that_need_no_model(
    tmp_path: Path, speculative: str, flags: tuple[str, ...], prefill: bool, decode: bool
) -> None:
    said = ("--speculative-config", speculative) if speculative else ()
    settings = config(tmp_path, *said, *flags)
    assert has_drafts(settings, Role.PREFILL) is prefill
    assert has_drafts(settings, Role.DECODE) is decode


class Steps:
    """Counts the orders; hangs while it is told to."""

    def __init__(self) -> None:
        self.told: list[tuple[Role, Role]] = []
        self.hangs = False

    async def prefer(self, role: Role, before: Role) -> int:
        if self.hangs:
            await asyncio.Event().wait()
        self.told.append((role, before))
        return 10 * len(self.told)


def worker(
    steps: Steps, *, served: frozenset[Role] = BOTH
) -> tuple[WorkerRoles, RequestGate, list[Role]]:
    gate = RequestGate("w")
    roles = WorkerRoles("w", Preference(Role.PREFILL), served, steps, gate, limits=("no drafts",))
    heard: list[Role] = []
    gate.on_change(lambda: heard.append(roles.preference))
    return roles, gate, heard


async def test_a_change_reaches_the_engine_once_and_then_the_directories() -> None:
    steps = Steps()
    roles, _, heard = worker(steps)
    await roles.begin()
    assert roles.limits == ()
    assert [await roles.prefer(Role.DECODE, None) for _ in range(2)] == [20, 20]
    assert steps.told == [(Role.PREFILL, Role.PREFILL), (Role.DECODE, Role.PREFILL)]
    assert heard == [Role.DECODE]
    assert roles.limits == ("no drafts",)
    registry = CollectorRegistry()
    registry.register(RoleCollector(roles.served, lambda: roles.preference, model="m"))
    values = {
        role: registry.get_sample_value(
            "baton_worker_preference", {"model_name": "m", "role": role.value}
        )
        for role in BOTH
    }
    assert values == {Role.DECODE: 1, Role.PREFILL: 0}


async def test_a_preference_outlives_the_life_that_was_told() -> None:
    preference = Preference(Role.PREFILL)
    for role in (Role.PREFILL, Role.DECODE):
        steps = Steps()
        roles = WorkerRoles("w", preference, BOTH, steps, RequestGate("w"))
        await roles.begin()
        assert steps.told == [(role, role)]
        assert (roles.first, roles.preference) == (Role.PREFILL, role)
        await roles.prefer(Role.DECODE, None)


async def test_what_cannot_be_preferred_is_refused_by_name() -> None:
    steps = Steps()
    roles, gate, heard = worker(steps, served=frozenset({Role.PREFILL}))
    with pytest.raises(UnsupportedError, match="w makes vectors alone: it cannot prefer decode"):
        await roles.prefer(Role.DECODE, None)
    gate.draining = True
    with pytest.raises(DrainingError, match="w is draining"):
        await roles.prefer(Role.PREFILL, None)
    assert (steps.told, heard, roles.preference) == ([], [], Role.PREFILL)


async def test_a_stuck_engine_changes_nothing_in_time() -> None:
    steps = Steps()
    roles, _, heard = worker(steps)
    steps.hangs = True
    with pytest.raises(DeadlineError, match="w: a step of its engine took too long"):
        await roles.prefer(Role.DECODE, 0.01)
    assert (heard, roles.preference) == ([], Role.PREFILL)
    steps.hangs = False
    assert await roles.prefer(Role.DECODE, 0.01) == 10
