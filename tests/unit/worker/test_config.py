"""Where a worker says that it is reached."""

from __future__ import annotations

from pathlib import Path

from shared.engine.settings.choices import SchedulingPolicy
from shared.engine.settings.engine import EngineConfig
from shared.engine.settings.model import ModelSettings
from shared.worker.config import WorkerConfig


def config(**settings: object) -> WorkerConfig:
    return WorkerConfig(
        model=ModelSettings(model=Path("m")),
        name="w",
        directory=("router:1",),
        **settings,  # type: ignore[arg-type]
    )


def test_others_are_told_where_it_listens() -> None:
    assert config().address(7000) == "127.0.0.1:7000"


def test_others_are_told_what_is_advertised() -> None:
    assert config(advertise_port=7100).address(7000) == "127.0.0.1:7100"
    told = config(host="0.0.0.0", advertise_host="worker-7").address(7000)
    assert told == "worker-7:7000"


def test_prompts_come_by_urgency_unless_another_order_is_wanted() -> None:
    assert config().engine.policy is SchedulingPolicy.URGENCY
    fcfs = EngineConfig(scheduling_policy=SchedulingPolicy.FCFS)
    assert config(engine=fcfs).engine == fcfs
    assert EngineConfig().policy is SchedulingPolicy.FCFS
